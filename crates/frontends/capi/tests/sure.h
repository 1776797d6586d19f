/* For programs that test the library: what has to hold, or the program says the line and ends. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include <hotshelf.h>

#define SURE(what)                                                                                                    \
    do {                                                                                                              \
        if (!(what)) {                                                                                                \
            fprintf(stderr, "line %d: %s (errno %d, %s)\n", __LINE__, #what, errno, hs_error());                      \
            exit(1);                                                                                                  \
        }                                                                                                             \
    } while (0)

/* The call fails with this errno and a sentence. */
#define FAILS(number, call)                                                                                           \
    do {                                                                                                              \
        errno = 0;                                                                                                    \
        SURE((call) == -1 && errno == (number) && hs_error()[0] != '\0');                                             \
    } while (0)
#define NONE(number, call)                                                                                            \
    do {                                                                                                              \
        errno = 0;                                                                                                    \
        SURE((call) == NULL && errno == (number) && hs_error()[0] != '\0');                                           \
    } while (0)

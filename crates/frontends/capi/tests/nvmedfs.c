/* The library file system from C: as POSIX has files, and what POSIX has not: images, transactions, requests. */
#include "nvmedfs/begin.h"
#include "nvmedfs/content.h"
#include "nvmedfs/images.h"
#include "nvmedfs/names.h"
#include "nvmedfs/requests.h"
#include "nvmedfs/wrong.h"

int main(int argc, char **argv)
{
    NVMEDFS *fs;
    self = argv[0];
    if (argc == 3 && strcmp(argv[1], "hold") == 0)
        hold(argv[2]);
    if (argc == 3 && strcmp(argv[1], "commit") == 0)
        commit_for_ever(argv[2]);
    if (argc != 2)
        return 2;
    fs = in_memory(0);
    content(fs);
    direct(fs);
    names(fs);
    attributes(fs);
    directories(fs);
    locks(fs);
    transactions(fs);
    changes_of_names(fs);
    requests(fs);
    hostile(fs);
    child(fs);
    threads(fs);
    SURE(nvmedfs_unmount(fs) == 0);
    FAILS(EBADF, nvmedfs_unmount(fs));
    bad_device();
    images(argv[1]);
    puts("all is well");
    return 0;
}

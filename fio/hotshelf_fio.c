/* fio's I/O through hotshelf's cache: fio --ioengine=external:.../libhotshelf_fio.so --config=hotshelf.toml ...

   Options of this engine beside fio's own:
     config=PATH   the configuration of the library; without it $HOTSHELF_CONFIG, else what is built in
     zero_copy=1   reads lend pages (upin, uunpin) instead of copying them. One byte of each is looked at, and with a verify= option
                   all of them are copied after all, since fio looks into its own buffer

   Which calls are made: at iodepth=1 upread and upwrite, beyond it and with zero_copy=0 those of struct uaio. fsync= is ufsync,
   fdatasync= is ufdatasync, sync=sync|dsync and direct=1 are flags of uopen, trims are holes. Each process of fio takes part in
   the cache as a process of its own; with thread=1 its jobs are one process, which has one configuration.

   invalidate=1, which is fio's default, does nothing: neither our cache nor the kernel's is emptied before a job.

   Built by fio/build.sh against the headers of the very fio that will load it. */
#include <fcntl.h>
#include <hotshelf.h>
#include <pthread.h>

#include "fio.h"
#include "optgroup.h"
#include "verify.h"

/* What the SSD has its pages at multiples of. */
enum { PAGE = 4096 };
/* Requests that are handed over together, if fio does not wait before: it commits each by itself, and a call and a word to the drive
   for each is more than the drive needs to have enough to do. A quarter of the depth at most. */
enum { HELD_MOST = 4 };

/* Our options as fio fills them in. The first field must not be one. */
struct options {
    void *none;
    char *config;
    unsigned int zero_copy, poll;
};

static struct fio_option option_list[] = {
    {
        .name = "config",
        .lname = "hotshelf configuration",
        .type = FIO_OPT_STR_STORE,
        .off1 = offsetof(struct options, config),
        .help = "Configuration file of hotshelf",
        .category = FIO_OPT_C_ENGINE,
        .group = FIO_OPT_G_INVALID,
    },
    {
        .name = "zero_copy",
        .lname = "lend pages",
        .type = FIO_OPT_BOOL,
        .off1 = offsetof(struct options, zero_copy),
        .def = "0",
        .help = "Read by upin and uunpin, without a copy",
        .category = FIO_OPT_C_ENGINE,
        .group = FIO_OPT_G_INVALID,
    },
    {
        .name = "poll",
        .lname = "stay awake",
        .type = FIO_OPT_BOOL,
        .off1 = offsetof(struct options, poll),
        .def = "0",
        .help = "Wait for the SSD awake",
        .category = FIO_OPT_C_ENGINE,
        .group = FIO_OPT_G_INVALID,
    },
    {.name = NULL},
};

/* A job. Requests of fio wait in `waiting` until commit, and come out in `ended`. */
struct job {
    UAIO *aio;
    struct uaio *waiting, *ended;
    unsigned int count, depth, held;
    bool zero_copy, poll, copy_after_all;
};

extern struct ioengine_ops ioengine;

/* The first job of a process initializes the library, and the last one shuts it down. */
static pthread_mutex_t library = PTHREAD_MUTEX_INITIALIZER;
static unsigned int jobs;
static char *configured;

static bool same(const char *a, const char *b) { return a == b || (a && b && strcmp(a, b) == 0); }

static int begin_library(const char *config) {
    int done = 0;
    pthread_mutex_lock(&library);
    if (jobs == 0) {
        done = hs_init(config);
        free(configured);
        configured = config ? strdup(config) : NULL;
        if (done != 0)
            log_err("hotshelf: %s\n", hs_error());
    } else if (!same(config, configured)) {
        log_err("hotshelf: jobs with thread=1 are one process, which has one config\n");
        done = -1;
    }
    if (done == 0)
        jobs++;
    pthread_mutex_unlock(&library);
    return done;
}

static void end_library(void) {
    pthread_mutex_lock(&library);
    if (--jobs == 0 && hs_shutdown() != 0)
        log_err("hotshelf: at the end: %s\n", hs_error());
    pthread_mutex_unlock(&library);
}

static void free_job(struct job *job) {
    if (job->aio)
        uaio_destroy(job->aio);
    free(job->waiting);
    free(job->ended);
    free(job);
}

/* What depth beyond 1, and a wait that stays awake, need. A job is one thread, which reaps when it has to wait: but it may be made by
   another one. */
static int make_queue(struct job *job) {
    job->waiting = calloc(job->depth, sizeof *job->waiting);
    job->ended = calloc(job->depth, sizeof *job->ended);
    if (!job->waiting || !job->ended)
        return -1;
    job->aio = uaio_create_with(job->depth, UAIO_ONE_THREAD | UAIO_WAITS | (job->poll ? UAIO_POLLS : 0));
    if (!job->aio)
        log_err("hotshelf: %s\n", hs_error());
    return job->aio ? 0 : -1;
}

static int engine_init(struct thread_data *td) {
    /* Another fio, or built otherwise: its structures are not those of our headers. */
    if (td->io_ops != &ioengine || !td->eo) {
        log_err("hotshelf: this engine was built for another fio: run fio/build.sh again\n");
        return 1;
    }
    const struct options *options = td->eo;
    struct job *job = calloc(1, sizeof *job);
    if (!job || begin_library(options->config) != 0) {
        free(job);
        return 1;
    }
    job->depth = td->o.iodepth;
    job->held = job->depth / 4 < HELD_MOST ? job->depth / 4 : HELD_MOST;
    job->zero_copy = options->zero_copy;
    job->poll = options->poll;
    job->copy_after_all = td->o.verify != VERIFY_NONE;
    if ((job->depth > 1 || job->poll) && !job->zero_copy && make_queue(job) != 0) {
        free_job(job);
        end_library();
        return 1;
    }
    td->io_ops_data = job;
    return 0;
}

static void engine_cleanup(struct thread_data *td) {
    if (!td->io_ops_data)
        return;
    free_job(td->io_ops_data);
    td->io_ops_data = NULL;
    end_library();
}

/* fio's buffers: memory that pages of the SSD come into without a copy. Where there is a queue it goes with that. fio refuses mem=
   beside it. */
static int engine_iomem_alloc(struct thread_data *td, size_t bytes) {
    const struct job *job = td->io_ops_data;
    td->orig_buffer = job->aio ? uaio_memory(job->aio, bytes) : aligned_alloc(PAGE, (bytes + PAGE - 1) / PAGE * PAGE);
    if (!td->orig_buffer)
        log_err("hotshelf: no memory for buffers of %zu bytes\n", bytes);
    return td->orig_buffer ? 0 : 1;
}

static void engine_iomem_free(struct thread_data *td) {
    const struct job *job = td->io_ops_data;
    if (!job || !job->aio)
        free(td->orig_buffer);
}

static int ufd_of(const struct fio_file *file) { return (int)(intptr_t)file->engine_data; }

static int flags_of(const struct thread_data *td) {
    int flags = (int)td->o.sync_io | (td->o.odirect ? O_DIRECT : 0);
    if (read_only || !(td_write(td) || td_trim(td)))
        return flags | O_RDONLY;
    return flags | O_RDWR | (td->o.allow_create ? O_CREAT : 0);
}

/* fio's own calls on its descriptor (hints, sizes) get one of the kernel's that only reads; all I/O goes through ours. */
static int engine_open(struct thread_data *td, struct fio_file *file) {
    int ufd = uopen(file->file_name, flags_of(td), 0600);
    if (ufd < 0) {
        int because = errno;
        log_err("hotshelf: %s\n", hs_error());
        td_verror(td, because, "uopen");
        return 1;
    }
    file->fd = open(file->file_name, O_RDONLY | O_CLOEXEC);
    if (file->fd < 0) {
        td_verror(td, errno, "open");
        uclose(ufd);
        return 1;
    }
    file->engine_data = (void *)(intptr_t)ufd;
    return 0;
}

static int engine_close(struct thread_data *td, struct fio_file *file) {
    int done = uclose(ufd_of(file));
    (void)td;
    if (done != 0)
        log_err("hotshelf: %s\n", hs_error());
    close(file->fd);
    file->fd = -1;
    file->engine_data = NULL;
    return done == 0 ? 0 : errno;
}

static int engine_invalidate(struct thread_data *td, struct fio_file *file) {
    (void)td;
    (void)file;
    return 0;
}

/* Bytes, or -1. Pages are given back at once. */
static ssize_t lend(const struct job *job, const struct io_u *io_u, int ufd) {
    size_t done = 0;
    while (done < io_u->xfer_buflen) {
        const void *at;
        off_t off = (off_t)(io_u->offset + done);
        ssize_t got = upin(ufd, off, io_u->xfer_buflen - done, &at);
        if (got <= 0)
            return done > 0 || got == 0 ? (ssize_t)done : -1;
        if (job->copy_after_all)
            memcpy((char *)io_u->xfer_buf + done, at, (size_t)got);
        else
            __asm__ volatile("" : : "r"(*(const volatile char *)at));
        if (uunpin(ufd, off, at) != 0)
            return -1;
        done += (size_t)got;
    }
    return (ssize_t)done;
}

static ssize_t call(const struct job *job, const struct io_u *io_u) {
    int ufd = ufd_of(io_u->file);
    off_t off = (off_t)io_u->offset;
    switch (io_u->ddir) {
    case DDIR_READ:
        return job->zero_copy ? lend(job, io_u, ufd) : upread(ufd, io_u->xfer_buf, io_u->xfer_buflen, off);
    case DDIR_WRITE:
        return upwrite(ufd, io_u->xfer_buf, io_u->xfer_buflen, off);
    case DDIR_SYNC:
        return ufsync(ufd);
    case DDIR_DATASYNC:
        return ufdatasync(ufd);
    case DDIR_TRIM:
        if (ufallocate(ufd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, off, (off_t)io_u->xfer_buflen) != 0)
            return -1;
        return (ssize_t)io_u->xfer_buflen;
    default:
        errno = EINVAL; /* sync_file_range, which has no equal */
        return -1;
    }
}

/* result: bytes, or a negative errno. */
static void end_request(struct io_u *io_u, int64_t result) {
    if (result < 0)
        io_u->error = (unsigned int)-result;
    else if (ddir_rw(io_u->ddir) && (uint64_t)result < io_u->xfer_buflen)
        io_u->resid = io_u->xfer_buflen - (uint64_t)result; /* fio requests the rest */
}

static enum fio_q_status at_once(struct thread_data *td, const struct job *job, struct io_u *io_u) {
    if (fio_fill_issue_time(td))
        fio_gettime(&io_u->issue_time, NULL);
    ssize_t result = call(job, io_u);
    end_request(io_u, result < 0 ? -(int64_t)errno : result);
    return FIO_Q_COMPLETED;
}

static int op_of(enum fio_ddir ddir) {
    switch (ddir) {
    case DDIR_READ:
        return UAIO_READ;
    case DDIR_WRITE:
        return UAIO_WRITE;
    case DDIR_SYNC:
        return UAIO_FSYNC;
    case DDIR_DATASYNC:
        return UAIO_FDATASYNC;
    default:
        return -1;
    }
}

static enum fio_q_status engine_queue(struct thread_data *td, struct io_u *io_u) {
    struct job *job = td->io_ops_data;
    int op = op_of(io_u->ddir);
    fio_ro_check(td, io_u);
    if (!job->aio)
        return at_once(td, job, io_u);
    if (op < 0)
        return job->count > 0 ? FIO_Q_BUSY : at_once(td, job, io_u);
    if (job->count == job->depth)
        return FIO_Q_BUSY;
    job->waiting[job->count++] = (struct uaio){
        .ufd = ufd_of(io_u->file),
        .op = (uint32_t)op,
        .buf = io_u->xfer_buf,
        .n = io_u->xfer_buflen,
        .off = (off_t)io_u->offset,
        .user = (uint64_t)(uintptr_t)io_u,
    };
    return FIO_Q_QUEUED;
}

static struct io_u *request_of(const struct uaio *request) { return (struct io_u *)(uintptr_t)request->user; }

static int hand_over(struct thread_data *td) {
    struct job *job = td->io_ops_data;
    unsigned int done = 0;
    if (fio_fill_issue_time(td) && job->count > 0) {
        struct timespec now;
        fio_gettime(&now, NULL);
        for (unsigned int i = 0; i < job->count; i++)
            request_of(&job->waiting[i])->issue_time = now;
    }
    while (done < job->count) {
        int taken = uaio_submit(job->aio, job->waiting + done, (int)(job->count - done));
        if (taken < 0 && errno != EAGAIN) {
            log_err("hotshelf: %s\n", hs_error());
            return -errno;
        }
        if (taken < 0)
            break; /* full: fio reaps, and commits again */
        for (int i = 0; i < taken; i++)
            io_u_queued(td, request_of(&job->waiting[done + (unsigned int)i]));
        io_u_mark_submit(td, (unsigned int)taken);
        done += (unsigned int)taken;
    }
    job->count -= done;
    memmove(job->waiting, job->waiting + done, job->count * sizeof *job->waiting);
    return 0;
}

static int engine_commit(struct thread_data *td) {
    const struct job *job = td->io_ops_data;
    /* With a rate fio sleeps between requests. */
    return job->aio && (job->count >= job->held || should_check_rate(td)) ? hand_over(td) : 0;
}

static int engine_getevents(struct thread_data *td, unsigned int min, unsigned int max, const struct timespec *timeout) {
    struct job *job = td->io_ops_data;
    if (!job->aio)
        return 0;
    int handed = job->count > 0 ? hand_over(td) : 0;
    if (handed < 0)
        return handed;
    int got = uaio_reap(job->aio, job->ended, (int)min, (int)(max < job->depth ? max : job->depth), timeout);
    return got < 0 ? -errno : got;
}

static struct io_u *engine_event(struct thread_data *td, int event) {
    const struct job *job = td->io_ops_data;
    struct io_u *io_u = request_of(&job->ended[event]);
    end_request(io_u, job->ended[event].result);
    return io_u;
}

/* Found by fio by this name. */
struct ioengine_ops ioengine = {
    .name = "hotshelf",
    .version = FIO_IOOPS_VERSION,
    .flags = FIO_ASYNCIO_SETS_ISSUE_TIME,
    .init = engine_init,
    .cleanup = engine_cleanup,
    .open_file = engine_open,
    .close_file = engine_close,
    .invalidate = engine_invalidate,
    .iomem_alloc = engine_iomem_alloc,
    .iomem_free = engine_iomem_free,
    .get_file_size = generic_get_file_size,
    .queue = engine_queue,
    .commit = engine_commit,
    .getevents = engine_getevents,
    .event = engine_event,
    .options = option_list,
    .option_struct_size = sizeof(struct options),
};

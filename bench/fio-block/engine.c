/* fio's requests by the io_uring driver of `block` (src/lib.rs), for bench/block-fio.sh: fio's own loop, clock and generator on both
   sides, so that only the driver differs from ioengine=io_uring. One file, reads and writes. */
#include "fio.h"

struct job;
struct job *job_open(const char *path, int direct, int writes, uint32_t depth);
void *job_memory(struct job *job, size_t bytes);
void job_submit(struct job *job, uint64_t tag, int writes, const void *data, uint32_t bytes, uint64_t offset);
void job_ring(struct job *job);
int job_reap(struct job *job, uint32_t least, uint32_t most);
uint64_t job_event(const struct job *job, int at);
void job_close(struct job *job);

struct state {
    struct job *job;
    struct io_u **waiting;  /* since the last commit */
    unsigned int count, depth;
};

static int engine_init(struct thread_data *td) {
    struct state *state = calloc(1, sizeof *state);
    unsigned int depth = td->o.iodepth;
    if (td->o.nr_files != 1) {
        log_err("fio-block: one file for each job\n");
        return 1;
    }
    state->depth = depth;
    state->waiting = calloc(depth, sizeof *state->waiting);
    state->job = job_open(td->files[0]->file_name, (int)td->o.odirect, td_write(td), depth);
    td->io_ops_data = state;
    return 0;
}

static void engine_cleanup(struct thread_data *td) {
    struct state *state = td->io_ops_data;
    if (!state)
        return;
    job_close(state->job);
    free(state->waiting);
    free(state);
}

static int engine_memory(struct thread_data *td, size_t bytes) {
    struct state *state = td->io_ops_data;
    td->orig_buffer = job_memory(state->job, bytes);
    return 0;
}

/* With the job. */
static void engine_memory_free(struct thread_data *td) { td->orig_buffer = NULL; }

static enum fio_q_status engine_queue(struct thread_data *td, struct io_u *io_u) {
    struct state *state = td->io_ops_data;
    fio_ro_check(td, io_u);
    if (state->count == state->depth)
        return FIO_Q_BUSY;
    if (!ddir_rw(io_u->ddir)) {
        io_u->error = EINVAL;
        return FIO_Q_COMPLETED;
    }
    job_submit(state->job, (uintptr_t)io_u, io_u->ddir == DDIR_WRITE, io_u->xfer_buf, (uint32_t)io_u->xfer_buflen, io_u->offset);
    state->waiting[state->count++] = io_u;
    return FIO_Q_QUEUED;
}

static int engine_commit(struct thread_data *td) {
    struct state *state = td->io_ops_data;
    if (state->count == 0)
        return 0;
    job_ring(state->job);
    if (fio_fill_issue_time(td)) {
        struct timespec now;
        fio_gettime(&now, NULL);
        for (unsigned int i = 0; i < state->count; i++) {
            state->waiting[i]->issue_time = now;
            io_u_queued(td, state->waiting[i]);
        }
    }
    io_u_mark_submit(td, state->count);
    state->count = 0;
    return 0;
}

static int engine_getevents(struct thread_data *td, unsigned int min, unsigned int max, const struct timespec *timeout) {
    struct state *state = td->io_ops_data;
    return job_reap(state->job, min, max < state->depth ? max : state->depth);
}

static struct io_u *engine_event(struct thread_data *td, int event) {
    struct state *state = td->io_ops_data;
    return (struct io_u *)(uintptr_t)job_event(state->job, event);
}

static int engine_invalidate(struct thread_data *td, struct fio_file *file) { return 0; }

/* Found by fio by this name. */
struct ioengine_ops ioengine = {
    .name = "fio-block",
    .version = FIO_IOOPS_VERSION,
    .flags = FIO_ASYNCIO_SETS_ISSUE_TIME,
    .init = engine_init,
    .cleanup = engine_cleanup,
    .iomem_alloc = engine_memory,
    .iomem_free = engine_memory_free,
    .open_file = generic_open_file,
    .close_file = generic_close_file,
    .get_file_size = generic_get_file_size,
    .invalidate = engine_invalidate,
    .queue = engine_queue,
    .commit = engine_commit,
    .getevents = engine_getevents,
    .event = engine_event,
};

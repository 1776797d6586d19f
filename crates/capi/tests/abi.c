/* Sizes and places of everything in hotshelf.h: what programs that were compiled once rely on. Its output is abi.txt. */
#include <stddef.h>
#include <stdio.h>

#include <hotshelf.h>

#define TYPE(type) printf("%s %zu\n", #type, sizeof(type))
#define FIELD(type, field) printf("%s.%s %zu+%zu\n", #type, #field, offsetof(type, field), sizeof(((type *)0)->field))
#define NUMBER(name) printf("%s %ld\n", #name, (long)(name))

int main(void)
{
    TYPE(nvmed_info);
    FIELD(nvmed_info, size);
    FIELD(nvmed_info, bytes);
    FIELD(nvmed_info, block_bytes);
    FIELD(nvmed_info, transfer_bytes_max);
    FIELD(nvmed_info, memory_align);
    FIELD(nvmed_info, volatile_cache);
    FIELD(nvmed_info, read_only);
    FIELD(nvmed_info, can_discard);
    FIELD(nvmed_info, can_write_zeroes);
    FIELD(nvmed_info, reserved);
    FIELD(nvmed_info, buffer_bytes_free);
    TYPE(nvmed_device_options);
    FIELD(nvmed_device_options, size);
    FIELD(nvmed_device_options, buffer_bytes);
    FIELD(nvmed_device_options, cache_bytes);
    FIELD(nvmed_device_options, readahead_bytes);
    TYPE(nvmed_queue_options);
    FIELD(nvmed_queue_options, size);
    FIELD(nvmed_queue_options, depth);
    FIELD(nvmed_queue_options, flags);
    FIELD(nvmed_queue_options, scheduler);
    FIELD(nvmed_queue_options, cancel_grace_ms);
    FIELD(nvmed_queue_options, reset_after_ms);
    FIELD(nvmed_queue_options, completion);
    TYPE(nvmed_handle_options);
    FIELD(nvmed_handle_options, size);
    FIELD(nvmed_handle_options, flags);
    FIELD(nvmed_handle_options, requests_max);
    FIELD(nvmed_handle_options, timeout_ms);
    FIELD(nvmed_handle_options, priority_class);
    TYPE(nvmed_io);
    FIELD(nvmed_io, size);
    FIELD(nvmed_io, op);
    FIELD(nvmed_io, flags);
    FIELD(nvmed_io, buf);
    FIELD(nvmed_io, len);
    FIELD(nvmed_io, offset);
    FIELD(nvmed_io, user);
    FIELD(nvmed_io, timeout_ms);
    FIELD(nvmed_io, reserved);
    TYPE(nvmed_event);
    FIELD(nvmed_event, user);
    FIELD(nvmed_event, request);
    FIELD(nvmed_event, result);
    FIELD(nvmed_event, op);
    FIELD(nvmed_event, flags);
    TYPE(NVMED_AIO_CTX);
    FIELD(NVMED_AIO_CTX, size);
    FIELD(NVMED_AIO_CTX, handle);
    FIELD(NVMED_AIO_CTX, offset);
    FIELD(NVMED_AIO_CTX, len);
    FIELD(NVMED_AIO_CTX, buf);
    FIELD(NVMED_AIO_CTX, cb_userdata);
    FIELD(NVMED_AIO_CTX, aio_callback);
    FIELD(NVMED_AIO_CTX, status);
    FIELD(NVMED_AIO_CTX, error);
    FIELD(NVMED_AIO_CTX, request);
    NUMBER(NVMED_DIRECT);
    NUMBER(NVMED_SYNC);
    NUMBER(NVMED_ZERO_COPY);
    NUMBER(NVMED_CACHED);
    NUMBER(NVMED_ASYNC);
    NUMBER(NVMED_DURABLE);
    NUMBER(NVMED_POLLED);
    NUMBER(HANDLE_DIRECT_IO);
    NUMBER(HANDLE_SYNC_IO);
    NUMBER(HANDLE_HINT_DMEM);
    NUMBER(HANDLE_INTERRUPT);
    NUMBER(NVMED_NO_CACHE);
    NUMBER(NVMED_CACHE_SIZE);
    NUMBER(NVMED_CACHE_LAZY_INIT);
    NUMBER(NVMED_QUEUE_DEDICATED);
    NUMBER(NVMED_QUEUE_DEVICE_POLLED);
    NUMBER(NVMED_QUEUE_KERNEL_SUBMITS);
    NUMBER(NVMED_SCHEDULER_NONE);
    NUMBER(NVMED_SCHEDULER_ELEVATOR);
    NUMBER(NVMED_SCHEDULER_DEADLINE);
    NUMBER(NVMED_SCHEDULER_CLASSES);
    NUMBER(NVMED_COMPLETION_DEFAULT);
    NUMBER(NVMED_COMPLETION_POLLING);
    NUMBER(NVMED_COMPLETION_INTERRUPT);
    NUMBER(NVMED_COMPLETION_ADAPTIVE);
    NUMBER(NVMED_COMPLETION_THREAD);
    NUMBER(NVMED_PARAM_CACHED);
    NUMBER(NVMED_PARAM_SYNCHRONOUS);
    NUMBER(NVMED_PARAM_TIMEOUT_MS);
    NUMBER(NVMED_PARAM_CLASS);
    NUMBER(NVMED_PARAM_URGENCY);
    NUMBER(NVMED_PARAM_FUA);
    NUMBER(NVMED_PARAM_COMPLETION);
    NUMBER(NVMED_PARAM_REQUESTS_MAX);
    NUMBER(NVMED_PARAM_QUEUE_DEPTH);
    NUMBER(NVMED_PARAM_SCHEDULER);
    NUMBER(NVMED_PARAM_DEVICE_POLLED);
    NUMBER(NVMED_PARAM_KERNEL_SUBMITS);
    NUMBER(NVMED_PARAM_POLL_MIN_NS);
    NUMBER(NVMED_PARAM_POLL_MAX_NS);
    NUMBER(NVMED_PARAM_CANCEL_GRACE_MS);
    NUMBER(NVMED_PARAM_RESET_AFTER_MS);
    NUMBER(NVMED_PARAM_CACHE_BYTES);
    NUMBER(NVMED_PARAM_READAHEAD_BYTES);
    NUMBER(NVMED_OP_READ);
    NUMBER(NVMED_OP_WRITE);
    NUMBER(NVMED_OP_FLUSH);
    NUMBER(NVMED_OP_DISCARD);
    NUMBER(NVMED_OP_WRITE_ZEROES);
    NUMBER(NVMED_EVENT_HELD);
    NUMBER(NVMED_AIO_DONE);
    NUMBER(NVMED_AIO_ERROR);
    NUMBER(NVMED_AIO_BUSY);
    TYPE(uaio);
    FIELD(uaio, ufd);
    FIELD(uaio, op);
    FIELD(uaio, buf);
    FIELD(uaio, n);
    FIELD(uaio, off);
    FIELD(uaio, user);
    FIELD(uaio, result);
    NUMBER(UAIO_READ);
    NUMBER(UAIO_WRITE);
    NUMBER(UAIO_FSYNC);
    NUMBER(UAIO_FDATASYNC);
    return 0;
}

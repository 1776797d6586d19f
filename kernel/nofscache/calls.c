// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
/*
 * What runs in place of a file system's functions, for chosen files. Each calls the function it stands for, which gets past the
 * hook since the call comes from this module. None of them may end in that call: it would then seem to come from elsewhere.
 *
 * They run where the file system's function was called, after it gave back its locks: in a system call, in a worker of io_uring
 * or of another part of the kernel, always where it may sleep.
 */
#include <linux/backing-dev.h>
#include <linux/pagemap.h>
#include <linux/uio.h>

#include "nofscache.h"

DEFINE_SRCU(nfc_calls);

/* Pages that can be read again: those of files in memory only cannot. */
static bool has_store(struct address_space *mapping)
{
	return mapping_can_writeback(mapping) && !IS_DAX(mapping->host);
}

ssize_t nfc_read_iter(struct kiocb *iocb, struct iov_iter *to)
{
	struct file *file = iocb->ki_filp;
	struct address_space *mapping = file->f_mapping;
	int held = srcu_read_lock(&nfc_calls);
	bool cached = has_store(mapping);
	ssize_t got;

	if (cached)
		nfc_leave_window(file, iocb->ki_pos, is_sync_kiocb(iocb));
	got = file->f_op->read_iter(iocb, to);
	/* Otherwise the request may have ended elsewhere, and be gone. */
	if (cached && got > 0) {
		nfc_drop_read(mapping, iocb->ki_pos - got, iocb->ki_pos);
		this_cpu_inc(nfc_counters.reads);
	}
	srcu_read_unlock(&nfc_calls, held);
	return got;
}

ssize_t nfc_write_iter(struct kiocb *iocb, struct iov_iter *from)
{
	struct file *file = iocb->ki_filp;
	struct address_space *mapping = file->f_mapping;
	int held = srcu_read_lock(&nfc_calls);
	bool cached = has_store(mapping);
	/* It will wait for the device. io_uring then gives it to a worker. */
	ssize_t took = -EAGAIN;

	if (!cached || !(iocb->ki_flags & IOCB_NOWAIT))
		took = file->f_op->write_iter(iocb, from);
	if (cached && took > 0) {
		loff_t start = iocb->ki_pos - took, end = iocb->ki_pos;

		nfc_write_out(mapping, start, end);
		if (READ_ONCE(nfc_drops_written))
			nfc_drop_written(mapping, start, end);
		this_cpu_inc(nfc_counters.writes);
	}
	srcu_read_unlock(&nfc_calls, held);
	return took;
}

/* From Linux 6.5 on, splice and sendfile read with this; before, with read_iter. The pipe keeps the pages it got. */
#ifdef NFC_HAS_SPLICE_READ
ssize_t nfc_splice_read(struct file *in, loff_t *pos, struct pipe_inode_info *pipe, size_t len, unsigned int flags)
{
	struct address_space *mapping = in->f_mapping;
	int held = srcu_read_lock(&nfc_calls);
	bool cached = has_store(mapping);
	ssize_t got;

	if (cached)
		nfc_leave_window(in, *pos, true);
	got = filemap_splice_read(in, pos, pipe, len, flags);
	if (cached && got > 0) {
		nfc_drop_read(mapping, *pos - got, *pos);
		this_cpu_inc(nfc_counters.reads);
	}
	srcu_read_unlock(&nfc_calls, held);
	return got;
}
#endif

/* The last descriptor or mapping of an open file goes: what it left in the cache goes, too. */
int nfc_release(struct inode *inode, struct file *file)
{
	struct address_space *mapping = file->f_mapping;
	int held = srcu_read_lock(&nfc_calls);
	int code;

	if (has_store(mapping))
		nfc_drop(mapping, 0, LLONG_MAX);
	code = file->f_op->release(inode, file);
	srcu_read_unlock(&nfc_calls, held);
	return code;
}

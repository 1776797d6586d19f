// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
/* What leaves the page cache, and is written out. */
#include <linux/magic.h>
#include <linux/mm.h>
#include <linux/pagemap.h>
#include <linux/pagevec.h>
#include <linux/sched.h>
#include <linux/version.h>

#include "nofscache.h"

DEFINE_PER_CPU(struct nfc_counters, nfc_counters);

static void release(struct folio_batch *batch)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 3, 0)
	folio_batch_release(batch);
#else
	/* The two are laid out alike, as the kernel's own folio_batch_release() has it. */
	pagevec_release((struct pagevec *)batch);
#endif
}

/*
 * Returns whether only the cache uses the folio. A mapped or pinned folio must stay: the owner of the pin may still write to it,
 * and that data would be lost. A reference alone is no reason: pages sit in the CPUs' LRU batches, or are read from a pipe.
 */
static bool droppable(struct folio *folio)
{
	return !folio_test_locked(folio) && !folio_test_dirty(folio) && !folio_test_writeback(folio) &&
	       !page_mapped(&folio->page) && !folio_maybe_dma_pinned(folio);
}

/* From the first page to the last one. Checks each folio again under its lock, and leaves what became dirty. */
static void drop_run(struct address_space *mapping, pgoff_t first, pgoff_t last)
{
	if (first > last)
		return;
	if (invalidate_inode_pages2_range(mapping, first, last))
		this_cpu_inc(nfc_counters.kept);
	this_cpu_add(nfc_counters.dropped, last - first + 1);
}

/* The folios of a batch, in runs of neighbours. */
static void drop_batch(struct address_space *mapping, struct folio_batch *batch)
{
	pgoff_t first = 1, last = 0;
	unsigned int i;

	for (i = 0; i < folio_batch_count(batch); i++) {
		struct folio *folio = batch->folios[i];

		if (!droppable(folio)) {
			this_cpu_inc(nfc_counters.kept);
			continue;
		}
		if (first <= last && folio->index != last + 1) {
			drop_run(mapping, first, last);
			first = 1, last = 0;
		}
		if (first > last)
			first = folio->index;
		last = folio->index + folio_nr_pages(folio) - 1;
	}
	drop_run(mapping, first, last);
}

/* nfc_drop - drops the pages that hold bytes from start to before end, except those somebody uses. Waits for no input or output. */
void nfc_drop(struct address_space *mapping, loff_t start, loff_t end)
{
	struct folio_batch batch;
	pgoff_t next = start >> PAGE_SHIFT;

	if (start >= end || !READ_ONCE(mapping->nrpages))
		return;
	folio_batch_init(&batch);
	while (filemap_get_folios(mapping, &next, (end - 1) >> PAGE_SHIFT, &batch)) {
		drop_batch(mapping, &batch);
		release(&batch);
		cond_resched();
	}
}

/* nfc_write_out - writes what is dirty there, and waits for it. An error is left for fsync to tell, as if the kernel had written. */
void nfc_write_out(struct address_space *mapping, loff_t start, loff_t end)
{
	int error = filemap_fdatawrite_range(mapping, start, end - 1);

	/* The compression threads of btrfs write later; the second call waits until they have submitted the data. */
	if (mapping->host->i_sb->s_magic == BTRFS_SUPER_MAGIC && !error)
		error = filemap_fdatawrite_range(mapping, start, end - 1);
	if (filemap_fdatawait_range_keep_errors(mapping, start, end - 1) || error)
		this_cpu_inc(nfc_counters.errors);
}

/* How many windows of read-ahead the requests of one io_uring may be apart. */
#define IN_FLIGHT 32

static bool at_end(struct address_space *mapping, loff_t end)
{
	return end >= i_size_read(mapping->host);
}

/*
 * nfc_drop_read - what a read returned. The page it ended within is kept for the read that goes on there: even the least memory
 * holds one page. nfc_leave_window() drops it when none does.
 */
void nfc_drop_read(struct address_space *mapping, loff_t start, loff_t end)
{
	nfc_drop(mapping, start, at_end(mapping, end) ? end : round_down(end, PAGE_SIZE));
}

/* nfc_drop_written - what a write took, once written out. The page is kept in which a file that grows will grow on. */
void nfc_drop_written(struct address_space *mapping, loff_t start, loff_t end)
{
	nfc_drop(mapping, start, at_end(mapping, end) ? round_down(end, PAGE_SIZE) : end);
}

/*
 * nfc_leave_window - before a read at pos. Pages read ahead serve the reads that go on in sequence, as they do with little memory;
 * a read elsewhere finds none of them. Reads whose caller does not wait come before those they follow have ended, and again when
 * their pages are there, with the window far ahead: for these the sequence goes on anywhere within the last windows.
 */
void nfc_leave_window(struct file *file, loff_t pos, bool waits)
{
	const struct file_ra_state *ahead = &file->f_ra;
	loff_t before = READ_ONCE(ahead->prev_pos);
	loff_t start = (loff_t)READ_ONCE(ahead->start) << PAGE_SHIFT;
	loff_t end = start + ((loff_t)READ_ONCE(ahead->size) << PAGE_SHIFT);

	if (pos == before || (!waits && start - IN_FLIGHT * (end - start) <= pos && pos <= end))
		return;
	if (before > 0 && offset_in_page(before))
		nfc_drop(file->f_mapping, before, before + 1);
	nfc_drop(file->f_mapping, start, end);
}

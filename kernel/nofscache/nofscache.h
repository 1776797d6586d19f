/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * nofscache: buffered reads and writes of chosen files as if there were no memory for the page cache.
 *
 * pages.c   what leaves the page cache, and is written out
 * calls.c   what runs in place of a file system's functions
 * hooks.c   how that comes to run (ftrace)
 * choice.c  which files: devices, mounts, control groups, processes
 * tree.c    the processes chosen, and what they start
 * sysfs.c   /sys/kernel/nofscache
 * main.c    the module and its parameters
 */
#ifndef NOFSCACHE_H
#define NOFSCACHE_H

#include <linux/fs.h>
#include <linux/percpu.h>
#include <linux/srcu.h>
#include <linux/types.h>

struct pipe_inode_info;
struct kobject;

/* pages.c */

/* Counters of each CPU. */
struct nfc_counters {
	u64 reads;	/* chosen reads that returned data */
	u64 writes;	/* chosen writes that took data */
	u64 dropped;	/* pages dropped */
	u64 kept;	/* pages that somebody uses, left in the cache */
	u64 errors;	/* writes whose data could not be written out */
};
DECLARE_PER_CPU(struct nfc_counters, nfc_counters);

void nfc_drop(struct address_space *mapping, loff_t start, loff_t end);
void nfc_write_out(struct address_space *mapping, loff_t start, loff_t end);
void nfc_drop_read(struct address_space *mapping, loff_t start, loff_t end);
void nfc_drop_written(struct address_space *mapping, loff_t start, loff_t end);
void nfc_leave_window(struct file *file, loff_t pos, bool waits);

/* calls.c */

/* Held while one of these runs: what they are made of may go when nobody holds it. */
extern struct srcu_struct nfc_calls;

ssize_t nfc_read_iter(struct kiocb *iocb, struct iov_iter *to);
ssize_t nfc_write_iter(struct kiocb *iocb, struct iov_iter *from);
ssize_t nfc_splice_read(struct file *in, loff_t *pos, struct pipe_inode_info *pipe, size_t len, unsigned int flags);
int nfc_release(struct inode *inode, struct file *file);

/* hooks.c; set is called with nfc_lock held */

int nfc_hooks_init(void);
void nfc_hooks_exit(void);
int nfc_hooks_set(bool on);
ssize_t nfc_hooks_show(char *buf);

/* choice.c; the kinds are in the order of their names in sysfs */

enum nfc_kind { NFC_DEVICES, NFC_MOUNTS, NFC_CGROUPS, NFC_PROCESSES, NFC_KINDS };

/* How many of all kinds may be chosen at once. */
#define NFC_MOST 64

extern struct mutex nfc_lock;

bool nfc_chosen(struct file *file);
bool nfc_any_chosen(void);
int nfc_choose(enum nfc_kind kind, const char *name);
int nfc_unchoose(enum nfc_kind kind, const char *name);
void nfc_unchoose_all(enum nfc_kind kind);
ssize_t nfc_choice_show(enum nfc_kind kind, char *buf);
void nfc_choice_exit(void);

/* tree.c */

bool nfc_tree_has(pid_t process);
int nfc_tree_add(pid_t root);
void nfc_tree_remove(pid_t root);
unsigned long nfc_tree_missed(void);

/* sysfs.c, main.c */

int nfc_sysfs_init(void);
void nfc_sysfs_exit(void);
/* A parameter: whether what was written is dropped as well. */
extern bool nfc_drops_written;
int nfc_enable(bool on);
bool nfc_enabled(void);
int nfc_apply(void);

#endif

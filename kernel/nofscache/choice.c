// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
/* Which files: what was chosen, as one table that is replaced whole and read without a lock. */
#include <linux/blkdev.h>
#include <linux/cgroup.h>
#include <linux/mount.h>
#include <linux/namei.h>
#include <linux/slab.h>
#include <linux/sysfs.h>

#include "nofscache.h"

struct entry {
	enum nfc_kind kind;
	char *name; /* as it was given */
	union {
		dev_t device;
		struct path mount;
		struct cgroup *cgroup;
		pid_t root;
	};
};

struct table {
	unsigned int count;
	struct entry entries[];
};

DEFINE_MUTEX(nfc_lock);
static struct table __rcu *chosen;

static struct table *locked_table(void)
{
	return rcu_dereference_protected(chosen, lockdep_is_held(&nfc_lock));
}

/* The device itself, or the whole disk that a partition is on. */
static bool is_on(struct file *file, dev_t device)
{
	struct inode *host = file->f_mapping->host;
	struct block_device *bdev = S_ISBLK(host->i_mode) ? I_BDEV(host) : host->i_sb->s_bdev;

	return bdev && (bdev->bd_dev == device || bdev_whole(bdev)->bd_dev == device);
}

static bool matches(const struct entry *entry, struct file *file)
{
	switch (entry->kind) {
	case NFC_DEVICES:
		return is_on(file, entry->device);
	case NFC_MOUNTS:
		return file->f_path.mnt == entry->mount.mnt;
	case NFC_CGROUPS:
		return task_under_cgroup_hierarchy(current, entry->cgroup);
	default:
		return nfc_tree_has(current->tgid);
	}
}

/* nfc_chosen - whether a call on the file, by the current process, is to go without the cache. Called with preemption off. */
bool nfc_chosen(struct file *file)
{
	const struct table *table = rcu_dereference_sched(chosen);
	unsigned int i;

	for (i = 0; table && i < table->count; i++) {
		if (matches(&table->entries[i], file))
			return true;
	}
	return false;
}

bool nfc_any_chosen(void)
{
	return locked_table() && locked_table()->count;
}

static int find_cgroup(struct entry *entry)
{
	static const char root[] = "/sys/fs/cgroup";
	const char *path = entry->name;

	if (!strncmp(path, root, sizeof(root) - 1))
		path += sizeof(root) - 1;
	entry->cgroup = cgroup_get_from_path(*path ? path : "/");
	return PTR_ERR_OR_ZERO(entry->cgroup);
}

static int find_mount(struct entry *entry)
{
	int error = kern_path(entry->name, LOOKUP_FOLLOW, &entry->mount);

	if (!error && entry->mount.dentry != entry->mount.mnt->mnt_root) {
		path_put(&entry->mount);
		error = -EINVAL;
	}
	return error;
}

static int find_process(struct entry *entry)
{
	int error = kstrtoint(entry->name, 10, &entry->root);

	return error ? error : nfc_tree_add(entry->root);
}

/* What the name stands for. The mount and the group are held as long as they are chosen. */
static int find(struct entry *entry)
{
	switch (entry->kind) {
	case NFC_DEVICES:
		return lookup_bdev(entry->name, &entry->device);
	case NFC_MOUNTS:
		return find_mount(entry);
	case NFC_CGROUPS:
		return find_cgroup(entry);
	default:
		return find_process(entry);
	}
}

static void let_go(struct entry *entry)
{
	switch (entry->kind) {
	case NFC_MOUNTS:
		path_put(&entry->mount);
		break;
	case NFC_CGROUPS:
		cgroup_put(entry->cgroup);
		break;
	case NFC_PROCESSES:
		nfc_tree_remove(entry->root);
		break;
	default:
		break;
	}
	kfree(entry->name);
}

static struct entry *look_up(enum nfc_kind kind, const char *name)
{
	struct table *table = locked_table();
	unsigned int i;

	for (i = 0; table && i < table->count; i++) {
		if (table->entries[i].kind == kind && !strcmp(table->entries[i].name, name))
			return &table->entries[i];
	}
	return NULL;
}

/* The table with one more, or with one less. Nobody sees the former one any more when this returns. */
static int replace(const struct entry *more, const struct entry *less)
{
	struct table *old = locked_table();
	unsigned int i, count = old ? old->count : 0;
	struct table *new = kzalloc(struct_size(new, entries, count + 1), GFP_KERNEL);

	if (!new)
		return -ENOMEM;
	for (i = 0; i < count; i++) {
		if (&old->entries[i] != less)
			new->entries[new->count++] = old->entries[i];
	}
	if (more)
		new->entries[new->count++] = *more;
	rcu_assign_pointer(chosen, new);
	synchronize_rcu();
	kfree(old);
	return 0;
}

/* nfc_choose - 0 also when it is chosen already. -ENOSPC: too many. Called with nfc_lock held, as the next ones. */
int nfc_choose(enum nfc_kind kind, const char *name)
{
	struct entry entry = { .kind = kind };
	int error;

	if (look_up(kind, name))
		return 0;
	if (locked_table() && locked_table()->count >= NFC_MOST)
		return -ENOSPC;
	entry.name = kstrdup(name, GFP_KERNEL);
	if (!entry.name)
		return -ENOMEM;
	error = find(&entry);
	if (error) {
		kfree(entry.name);
		return error;
	}
	error = replace(&entry, NULL);
	if (error)
		let_go(&entry);
	return error;
}

/* nfc_unchoose - -ENOENT: it was not chosen by that name. */
int nfc_unchoose(enum nfc_kind kind, const char *name)
{
	struct entry *found = look_up(kind, name);
	struct entry entry;
	int error;

	if (!found)
		return -ENOENT;
	entry = *found;
	error = replace(NULL, found);
	if (!error)
		let_go(&entry);
	return error;
}

/* nfc_unchoose_all - takes no memory: the hooks are off, or the table stays as long as it takes. */
void nfc_unchoose_all(enum nfc_kind kind)
{
	struct table *table = locked_table();
	unsigned int i;

	for (i = table ? table->count : 0; i-- > 0;) {
		if (table->entries[i].kind != kind)
			continue;
		if (nfc_unchoose(kind, table->entries[i].name))
			return;
		table = locked_table();
	}
}

ssize_t nfc_choice_show(enum nfc_kind kind, char *buf)
{
	struct table *table = locked_table();
	ssize_t len = 0;
	unsigned int i;

	for (i = 0; table && i < table->count; i++) {
		if (table->entries[i].kind == kind)
			len += sysfs_emit_at(buf, len, "%s\n", table->entries[i].name);
	}
	return len;
}

/* nfc_choice_exit - nobody looks any more. */
void nfc_choice_exit(void)
{
	struct table *table = rcu_dereference_protected(chosen, true);
	unsigned int i;

	for (i = 0; table && i < table->count; i++)
		let_go(&table->entries[i]);
	kfree(table);
}

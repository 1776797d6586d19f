// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
/* /sys/kernel/nofscache: what is chosen, whether it is on, and what was done. */
#include <linux/kobject.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/sysfs.h>

#include "nofscache.h"

static struct kobject *place;

static ssize_t list_show(enum nfc_kind kind, char *buf)
{
	ssize_t len;

	mutex_lock(&nfc_lock);
	len = nfc_choice_show(kind, buf);
	mutex_unlock(&nfc_lock);
	return len;
}

/* NAME adds, -NAME takes away, an empty line takes all away. */
static int change(enum nfc_kind kind, const char *line)
{
	bool adds = *line && *line != '-';
	int error = 0;

	mutex_lock(&nfc_lock);
	if (!*line)
		nfc_unchoose_all(kind);
	else if (!adds)
		error = nfc_unchoose(kind, line + 1);
	else
		error = nfc_choose(kind, line);
	if (!error) {
		error = nfc_apply();
		if (error && adds)
			nfc_unchoose(kind, line);
	}
	mutex_unlock(&nfc_lock);
	return error;
}

static ssize_t list_store(enum nfc_kind kind, const char *buf, size_t count)
{
	char *line = kstrndup(buf, count, GFP_KERNEL);
	int error;

	if (!line)
		return -ENOMEM;
	if (count && line[count - 1] == '\n')
		line[count - 1] = 0;
	error = change(kind, line);
	kfree(line);
	return error ? error : count;
}

#define LIST(name, kind)                                                                                       \
	static ssize_t name##_show(struct kobject *k, struct kobj_attribute *a, char *buf)                     \
	{                                                                                                      \
		return list_show(kind, buf);                                                                   \
	}                                                                                                      \
	static ssize_t name##_store(struct kobject *k, struct kobj_attribute *a, const char *buf, size_t count) \
	{                                                                                                      \
		return list_store(kind, buf, count);                                                           \
	}                                                                                                      \
	static struct kobj_attribute name##_attribute = __ATTR_RW_MODE(name, 0600)

LIST(devices, NFC_DEVICES);
LIST(mounts, NFC_MOUNTS);
LIST(cgroups, NFC_CGROUPS);
LIST(processes, NFC_PROCESSES);

static ssize_t enabled_show(struct kobject *k, struct kobj_attribute *a, char *buf)
{
	return sysfs_emit(buf, "%d\n", nfc_enabled());
}

static ssize_t enabled_store(struct kobject *k, struct kobj_attribute *a, const char *buf, size_t count)
{
	bool on;
	int error = kstrtobool(buf, &on);

	if (!error)
		error = nfc_enable(on);
	return error ? error : count;
}

static ssize_t hooks_show(struct kobject *k, struct kobj_attribute *a, char *buf)
{
	return nfc_hooks_show(buf);
}

static ssize_t counters_show(struct kobject *k, struct kobj_attribute *a, char *buf)
{
	struct nfc_counters all = {};
	int cpu;

	for_each_possible_cpu(cpu) {
		const struct nfc_counters *one = per_cpu_ptr(&nfc_counters, cpu);

		all.reads += one->reads;
		all.writes += one->writes;
		all.dropped += one->dropped;
		all.kept += one->kept;
		all.errors += one->errors;
	}
	return sysfs_emit(buf, "reads %llu\nwrites %llu\npages_dropped %llu\npages_kept %llu\nwrite_errors %llu\nprocesses_missed %lu\n",
			  all.reads, all.writes, all.dropped, all.kept, all.errors, nfc_tree_missed());
}

static struct kobj_attribute enabled_attribute = __ATTR_RW_MODE(enabled, 0600);
static struct kobj_attribute hooks_attribute = __ATTR_RO_MODE(hooks, 0400);
static struct kobj_attribute counters_attribute = __ATTR_RO_MODE(counters, 0400);

static struct attribute *attributes[] = {
	&enabled_attribute.attr, &devices_attribute.attr,   &mounts_attribute.attr,   &cgroups_attribute.attr,
	&processes_attribute.attr, &hooks_attribute.attr, &counters_attribute.attr, NULL,
};
static const struct attribute_group group = { .attrs = attributes };

int nfc_sysfs_init(void)
{
	int error;

	place = kobject_create_and_add("nofscache", kernel_kobj);
	if (!place)
		return -ENOMEM;
	error = sysfs_create_group(place, &group);
	if (error)
		kobject_put(place);
	return error;
}

/* Returns when nobody is in one of the functions above. */
void nfc_sysfs_exit(void)
{
	sysfs_remove_group(place, &group);
	kobject_put(place);
}

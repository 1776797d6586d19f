// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
/* The module and its parameters. */
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/slab.h>
#include <linux/string.h>

#include "nofscache.h"

static bool enabled = true;
static char *devices, *mounts, *cgroups, *processes;

/* Not, as in the paper: with little memory a read soon after a write finds it, too. */
bool nfc_drops_written;
module_param_named(drop_written, nfc_drops_written, bool, 0600);
MODULE_PARM_DESC(drop_written, "drop what was written, too, so that reading it reads the device (default: no)");

module_param(enabled, bool, 0);
MODULE_PARM_DESC(enabled, "begin with what is chosen here (default: yes)");
module_param(devices, charp, 0);
MODULE_PARM_DESC(devices, "block devices, as /dev/nvme0n1,/dev/sdb1");
module_param(mounts, charp, 0);
MODULE_PARM_DESC(mounts, "mount points, with commas between");
module_param(cgroups, charp, 0);
MODULE_PARM_DESC(cgroups, "control groups (v2), as /jobs/a,/jobs/b");
module_param(processes, charp, 0);
MODULE_PARM_DESC(processes, "processes with all they start, by their numbers");

/* nfc_apply - the hooks are there only while they are of use. Called with nfc_lock held. */
int nfc_apply(void)
{
	return nfc_hooks_set(enabled && nfc_any_chosen());
}

bool nfc_enabled(void)
{
	return enabled;
}

int nfc_enable(bool on)
{
	int error;

	mutex_lock(&nfc_lock);
	enabled = on;
	error = nfc_apply();
	if (error)
		enabled = false;
	mutex_unlock(&nfc_lock);
	return error;
}

static int choose_all(enum nfc_kind kind, const char *names)
{
	char *copy, *rest, *name;
	int error = 0;

	if (!names)
		return 0;
	rest = copy = kstrdup(names, GFP_KERNEL);
	if (!copy)
		return -ENOMEM;
	while (!error && (name = strsep(&rest, ",")) != NULL) {
		error = *name ? nfc_choose(kind, name) : 0;
		if (error)
			pr_err("nofscache: cannot choose %s: error %d\n", name, error);
	}
	kfree(copy);
	return error;
}

static int choose_parameters(void)
{
	int error = choose_all(NFC_DEVICES, devices);

	if (!error)
		error = choose_all(NFC_MOUNTS, mounts);
	if (!error)
		error = choose_all(NFC_CGROUPS, cgroups);
	if (!error)
		error = choose_all(NFC_PROCESSES, processes);
	return error ? error : nfc_apply();
}

static int __init nfc_init(void)
{
	int error = nfc_hooks_init();

	if (error)
		return error;
	mutex_lock(&nfc_lock);
	error = choose_parameters();
	mutex_unlock(&nfc_lock);
	if (!error)
		error = nfc_sysfs_init();
	if (error) {
		nfc_hooks_exit();
		nfc_choice_exit();
	}
	return error;
}

static void __exit nfc_exit(void)
{
	nfc_sysfs_exit();
	nfc_hooks_exit();
	nfc_choice_exit();
}

module_init(nfc_init);
module_exit(nfc_exit);
MODULE_DESCRIPTION("Buffered reads and writes as if there were no memory for the page cache");
MODULE_AUTHOR("The hotshelf authors");
MODULE_LICENSE("GPL");
MODULE_VERSION("1");

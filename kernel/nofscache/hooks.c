// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
/*
 * How the functions of calls.c come to run: a hook of ftrace at the first instruction of a file system's function sends chosen
 * calls there, and all others on. It is what livepatch itself is made of, but may call the function it stands for.
 *
 * Unloading: without the hook no new call comes in. A call may have been redirected without having arrived, or have left without
 * having returned. Both happen only while its task runs or is preempted, which synchronize_rcu_tasks() waits for. Of the two waits,
 * unregister_ftrace_function() does the first itself, because it frees its trampoline. Calls in between hold nfc_calls.
 */
#include <linux/ftrace.h>
#include <linux/kprobes.h>
#include <linux/module.h>
#include <linux/rcupdate.h>
#include <linux/version.h>

#include "nofscache.h"

/* Where the file is among the arguments. */
enum shape { REQUEST, FILE_FIRST, FILE_SECOND };

struct hook {
	const char *name;
	/* Where it is, unless it is a part of the kernel proper. */
	const char *module;
	enum shape shape;
	void *instead;
	/* For functions that others call in the course of their own: only where they are the file's. */
	void *only_if;
	/* Where ftrace finds it; 0 when no such function is loaded. */
	unsigned long at;
	/* There was nothing new since it was looked for, which takes long. */
	bool looked;
};

#define FILES_OF(of, prefix, closes)                                                                 \
	{ .name = prefix "_read_iter", .module = of, .shape = REQUEST, .instead = nfc_read_iter },   \
	{ .name = prefix "_write_iter", .module = of, .shape = REQUEST, .instead = nfc_write_iter }, \
	{ .name = closes, .module = of, .shape = FILE_SECOND, .instead = nfc_release }

#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 10, 0)
#define BLOCK_DEVICE_CLOSES "blkdev_release"
#else
#define BLOCK_DEVICE_CLOSES "blkdev_close"
#endif

static struct hook hooks[] = {
	FILES_OF("ext4", "ext4_file", "ext4_release_file"),
	FILES_OF("xfs", "xfs_file", "xfs_file_release"),
	FILES_OF("btrfs", "btrfs_file", "btrfs_release_file"),
	FILES_OF(NULL, "blkdev", BLOCK_DEVICE_CLOSES),
	/* vfat, exfat and others */
	{ .name = "generic_file_read_iter", .shape = REQUEST, .instead = nfc_read_iter, .only_if = generic_file_read_iter },
	{ .name = "generic_file_write_iter", .shape = REQUEST, .instead = nfc_write_iter, .only_if = generic_file_write_iter },
	{ .name = "fat_file_release", .module = "fat", .shape = FILE_SECOND, .instead = nfc_release },
#ifdef NFC_HAS_SPLICE_READ
	{ .name = "filemap_splice_read", .shape = FILE_FIRST, .instead = nfc_splice_read },
#endif
};

/* For hooks and ops. Never held while waiting for calls: one of them may wait for a module to be loaded. */
static DEFINE_MUTEX(hooks_lock);
static bool hooked;

static void *argument(struct ftrace_regs *regs, int which)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 2, 0)
	return (void *)ftrace_regs_get_argument(regs, which);
#else
	return (void *)(which ? regs->regs.si : regs->regs.di);
#endif
}

static void send_to(struct ftrace_regs *regs, void *instead)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 2, 0)
	ftrace_regs_set_instruction_pointer(regs, (unsigned long)instead);
#else
	ftrace_instruction_pointer_set(regs, (unsigned long)instead);
#endif
}

/* The file a call is about, unless it is no call for us. */
static struct file *file_of(const struct hook *hook, struct ftrace_regs *regs)
{
	struct kiocb *iocb;
	struct file *file;

	switch (hook->shape) {
	case REQUEST:
		iocb = argument(regs, 0);
		if (iocb->ki_flags & IOCB_DIRECT)
			return NULL;
		file = iocb->ki_filp;
		if (hook->only_if && file->f_op->read_iter != hook->only_if && file->f_op->write_iter != hook->only_if)
			return NULL;
		return file;
	case FILE_FIRST:
		return argument(regs, 0);
	default:
		file = argument(regs, 1);
		return file->f_flags & O_DIRECT ? NULL : file;
	}
}

/* Whether the file of the call is chosen. A kernel that preempts itself may do so in a hook: the table could go meanwhile. */
static bool notrace is_for_us(const struct hook *hook, struct ftrace_regs *regs)
{
	struct file *file = file_of(hook, regs);
	bool is;

	preempt_disable_notrace();
	is = file && nfc_chosen(file);
	preempt_enable_notrace();
	return is;
}

/* Runs at each call of a hooked function. */
static void notrace meet(unsigned long ip, unsigned long parent, struct ftrace_ops *ops, struct ftrace_regs *regs)
{
	const struct hook *hook;

	if (within_module(parent, THIS_MODULE))
		return;
	for (hook = hooks; hook < hooks + ARRAY_SIZE(hooks); hook++) {
		if (hook->at != ip)
			continue;
		if (is_for_us(hook, regs))
			send_to(regs, hook->instead);
		return;
	}
}

static struct ftrace_ops ops = {
	.func = meet,
	.flags = FTRACE_OPS_FL_IPMODIFY | FTRACE_OPS_FL_PERMANENT
#ifndef CONFIG_DYNAMIC_FTRACE_WITH_ARGS
		| FTRACE_OPS_FL_SAVE_REGS
#endif
};

/* The kernel tells modules where a function is only by a probe on it. All at once: to take probes off takes time. */
static void find_all(void)
{
	static struct kprobe probes[ARRAY_SIZE(hooks)];
	struct kprobe *found[ARRAY_SIZE(hooks)];
	int i, count = 0;

	for (i = 0; i < ARRAY_SIZE(hooks); i++) {
		if (hooks[i].looked)
			continue;
		hooks[i].looked = true;
		probes[i] = (struct kprobe){ .symbol_name = hooks[i].name };
		if (register_kprobe(&probes[i]))
			continue;
		hooks[i].at = (unsigned long)probes[i].addr;
		found[count++] = &probes[i];
	}
	unregister_kprobes(found, count);
}

static int add(struct hook *hook)
{
	int error;

	if (!hook->at)
		return 0;
	error = ftrace_set_filter_ip(&ops, hook->at, 0, 0);
	if (error) {
		pr_warn("nofscache: cannot hook %s: %d\n", hook->name, error);
		hook->at = 0;
	}
	return error;
}

/* Not ftrace_free_filter(): before 6.3 it leaves behind what it freed. */
static void forget_all(void)
{
	ftrace_set_filter(&ops, NULL, 0, 1);
}

static int put_in(void)
{
	struct hook *hook;
	int error = 0, found = 0;

	find_all();
	for (hook = hooks; hook < hooks + ARRAY_SIZE(hooks) && !error; hook++) {
		error = add(hook);
		found += hook->at != 0;
	}
	/* Without any, the hook would be one on every function of the kernel. */
	if (!error && !found)
		error = -ENOENT;
	if (!error)
		error = register_ftrace_function(&ops);
	if (error)
		forget_all();
	return error;
}

static void take_out(void)
{
	WARN_ON(unregister_ftrace_function(&ops));
	forget_all();
}

/* nfc_hooks_set - when it returns with the hooks off, no call is under way in this module. */
int nfc_hooks_set(bool on)
{
	int error = 0;
	bool left;

	mutex_lock(&hooks_lock);
	left = hooked && !on;
	if (left)
		take_out();
	else if (on && !hooked)
		error = put_in();
	hooked = on && !error;
	mutex_unlock(&hooks_lock);
	if (left) {
		synchronize_srcu(&nfc_calls);
		synchronize_rcu_tasks();
	}
	return error;
}

ssize_t nfc_hooks_show(char *buf)
{
	const struct hook *hook;
	ssize_t len = 0;

	mutex_lock(&hooks_lock);
	for (hook = hooks; hooked && hook < hooks + ARRAY_SIZE(hooks); hook++) {
		if (hook->at)
			len += sysfs_emit_at(buf, len, "%s\n", hook->name);
	}
	mutex_unlock(&hooks_lock);
	return len;
}

static void comes(const struct module *module)
{
	struct hook *hook;

	for (hook = hooks; hook < hooks + ARRAY_SIZE(hooks); hook++) {
		if (hook->module && !strcmp(hook->module, module->name))
			hook->looked = false;
	}
	if (!hooked)
		return;
	find_all();
	for (hook = hooks; hook < hooks + ARRAY_SIZE(hooks); hook++) {
		if (hook->at && within_module(hook->at, module))
			add(hook);
	}
}

/* ftrace forgets it by itself. */
static void goes(const struct module *module)
{
	struct hook *hook;

	for (hook = hooks; hook < hooks + ARRAY_SIZE(hooks); hook++) {
		if (hook->at && within_module(hook->at, module))
			hook->at = 0;
	}
}

/* File systems are modules, too: they come and go. */
static int module_changes(struct notifier_block *block, unsigned long state, void *module)
{
	mutex_lock(&hooks_lock);
	if (state == MODULE_STATE_COMING)
		comes(module);
	else if (state == MODULE_STATE_GOING)
		goes(module);
	mutex_unlock(&hooks_lock);
	return NOTIFY_OK;
}

static struct notifier_block modules = { .notifier_call = module_changes };

int nfc_hooks_init(void)
{
	return register_module_notifier(&modules);
}

void nfc_hooks_exit(void)
{
	unregister_module_notifier(&modules);
	nfc_hooks_set(false);
}

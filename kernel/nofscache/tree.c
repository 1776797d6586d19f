// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
/*
 * The processes chosen with all they start. Told by the tracepoints of fork and exit, so that a child whose parent has ended still
 * belongs; those that are there already are found by their parents.
 */
#include <linux/hashtable.h>
#include <linux/sched/signal.h>
#include <linux/sched/task.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/tracepoint.h>

#include "nofscache.h"

struct member {
	struct hlist_node link;
	struct rcu_head rcu;
	pid_t process, root;
};

static DEFINE_HASHTABLE(members, 8);
static DEFINE_SPINLOCK(members_lock);
static unsigned int roots;
static atomic_long_t missed;
static struct tracepoint *forks, *exits;

/* Under members_lock, or with preemption off. */
static struct member *member(pid_t process)
{
	struct member *found;

	hash_for_each_possible_rcu_notrace(members, found, link, process) {
		if (found->process == process)
			return found;
	}
	return NULL;
}

bool nfc_tree_has(pid_t process)
{
	return member(process) != NULL;
}

/* In a fork: never sleeps. */
static bool join(pid_t process, pid_t root)
{
	struct member *new = kmalloc(sizeof(*new), GFP_ATOMIC | __GFP_NOWARN);
	unsigned long flags;
	bool joined = false;

	if (!new) {
		atomic_long_inc(&missed);
		return false;
	}
	new->process = process;
	new->root = root;
	spin_lock_irqsave(&members_lock, flags);
	if (!member(process)) {
		hash_add_rcu(members, &new->link, process);
		joined = true;
	}
	spin_unlock_irqrestore(&members_lock, flags);
	if (!joined)
		kfree(new);
	return joined;
}

/* Those the condition is true of: that process, or all below that root. */
static void leave(pid_t process, pid_t root)
{
	struct hlist_node *next;
	struct member *each;
	unsigned long flags;
	int bucket;

	spin_lock_irqsave(&members_lock, flags);
	hash_for_each_safe(members, bucket, next, each, link) {
		if (each->process == process || each->root == root) {
			hash_del_rcu(&each->link);
			kfree_rcu(each, rcu);
		}
	}
	spin_unlock_irqrestore(&members_lock, flags);
}

static void forked(void *data, struct task_struct *parent, struct task_struct *child)
{
	struct member *of;
	pid_t root = 0;

	if (child->tgid == parent->tgid)
		return;
	rcu_read_lock();
	of = member(parent->tgid);
	if (of)
		root = of->root;
	rcu_read_unlock();
	if (root)
		join(child->tgid, root);
}

static void exited(void *data, struct task_struct *task)
{
	/* The last thread of it. */
	if (!atomic_read(&task->signal->live) && nfc_tree_has(task->tgid))
		leave(task->tgid, -1);
}

/* Whether any above the process belongs; its root then. */
static pid_t root_of(struct task_struct *process)
{
	struct member *of = NULL;

	while (!of && process->tgid > 1) {
		of = member(process->tgid);
		process = rcu_dereference(process->real_parent);
	}
	return of ? of->root : 0;
}

/* Once more when one was found: it may have had children meanwhile that neither their fork told of nor this saw. */
static void join_present(void)
{
	struct task_struct *process;
	bool more = true;

	while (more) {
		more = false;
		rcu_read_lock();
		for_each_process(process) {
			pid_t root = nfc_tree_has(process->tgid) ? 0 : root_of(process);

			if (root && join(process->tgid, root))
				more = true;
		}
		rcu_read_unlock();
	}
}

static void find_point(struct tracepoint *point, void *data)
{
	if (!strcmp(point->name, "sched_process_fork"))
		forks = point;
	else if (!strcmp(point->name, "sched_process_exit"))
		exits = point;
}

static int listen(void)
{
	int error;

	if (!forks || !exits)
		for_each_kernel_tracepoint(find_point, NULL);
	if (!forks || !exits)
		return -EOPNOTSUPP;
	error = tracepoint_probe_register(forks, forked, NULL);
	if (error)
		return error;
	error = tracepoint_probe_register(exits, exited, NULL);
	if (error)
		tracepoint_probe_unregister(forks, forked, NULL);
	return error;
}

static void stop_listening(void)
{
	tracepoint_probe_unregister(forks, forked, NULL);
	tracepoint_probe_unregister(exits, exited, NULL);
	tracepoint_synchronize_unregister();
}

static bool lives(pid_t process)
{
	bool found;

	rcu_read_lock();
	found = pid_task(find_pid_ns(process, &init_pid_ns), PIDTYPE_TGID) != NULL;
	rcu_read_unlock();
	return found;
}

/* nfc_tree_add - numbers are those of the first namespace. A process below a chosen one stays with that. */
int nfc_tree_add(pid_t root)
{
	int error;

	if (root <= 0 || !lives(root))
		return -ESRCH;
	error = roots ? 0 : listen();
	if (error)
		return error;
	roots++;
	join(root, root);
	join_present();
	return 0;
}

void nfc_tree_remove(pid_t root)
{
	leave(-1, root);
	if (!--roots) {
		stop_listening();
		/* Those who joined by a fork under way. */
		leave(-1, root);
		/* kfree_rcu() needs nothing of this module. */
	}
}

/* nfc_tree_missed - processes that do not belong for want of memory. */
unsigned long nfc_tree_missed(void)
{
	return atomic_long_read(&missed);
}

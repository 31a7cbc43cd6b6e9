/* Runs `body` once per rank: as threads of this process, or as processes. Returns the sum of what the bodies return. */
#ifndef LAUNCH_H
#define LAUNCH_H

#include <fcntl.h>
#include <nccl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

enum { MOST_RANKS = 16 };

static int nranks;

typedef size_t (*RankBody)(int rank, ncclUniqueId id);

typedef struct {
  int rank;
  ncclUniqueId id;
  RankBody body;
  size_t result;
} Job;

static void *run_job(void *argument) {
  Job *job = argument;
  job->result = job->body(job->rank, job->id);
  return NULL;
}

static size_t run_threads(RankBody body) {
  pthread_t threads[MOST_RANKS];
  Job jobs[MOST_RANKS];
  ncclUniqueId id;
  size_t sum = 0;
  int r;
  check(ncclGetUniqueId(&id), "ncclGetUniqueId");
  for (r = 0; r < nranks; ++r) {
    jobs[r].rank = r, jobs[r].id = id, jobs[r].body = body;
    pthread_create(&threads[r], NULL, run_job, &jobs[r]);
  }
  for (r = 0; r < nranks; ++r) pthread_join(threads[r], NULL), sum += jobs[r].result;
  return sum;
}

/* RANK_HOSTS, a letter for each rank: ranks with equal letters are on one machine, as far as the library can tell. With
 * RANK_LAB, a name, those of letter `a` are in the network namespace NAME-a, and so on, and see its devices in /sys. */
static void choose_host(int rank) {
  const char *hosts = getenv("RANK_HOSTS"), *lab = getenv("RANK_LAB");
  char name[2] = "", path[128];
  if (hosts == NULL) return;
  if (strlen(hosts) != (size_t)nranks) exit(2);
  name[0] = hosts[rank];
  setenv("COLLC_HOSTID", name, 1);
  if (lab == NULL) return;
  snprintf(path, sizeof path, "/run/netns/%.80s-%s", lab, name);
  require(setns(open(path, O_RDONLY), CLONE_NEWNET) == 0, "the namespace of a server");
  require(unshare(CLONE_NEWNS) == 0 && mount("none", "/", NULL, MS_REC | MS_SLAVE, NULL) == 0, "mounts of its own");
  require(mount("sysfs", "/sys", "sysfs", 0, NULL) == 0, "the devices of a server");
}

/* The parent never calls NCCL; rank 0 makes the id and writes it to the others' pipes. */
static size_t run_processes(RankBody body) {
  int pipes[MOST_RANKS][2], back[2], status = 0, failed = 0, r, peer;
  size_t sum = 0, part;
  if (pipe(back) != 0) exit(1);
  for (r = 0; r < nranks; ++r)
    if (pipe(pipes[r]) != 0) exit(1);
  for (r = 0; r < nranks; ++r) {
    ncclUniqueId id;
    if (fork() != 0) continue;
    choose_host(r);
    if (r == 0) {
      check(ncclGetUniqueId(&id), "ncclGetUniqueId");
      for (peer = 1; peer < nranks; ++peer)
        if (write(pipes[peer][1], &id, sizeof id) != sizeof id) exit(1);
    } else if (read(pipes[r][0], &id, sizeof id) != sizeof id) {
      exit(1);
    }
    part = body(r, id);
    exit(write(back[1], &part, sizeof part) == sizeof part ? 0 : 1);
  }
  for (r = 0; r < nranks; ++r) {
    wait(&status);
    failed |= status != 0;
    if (status == 0 && read(back[0], &part, sizeof part) == sizeof part) sum += part;
  }
  if (failed) exit(1);
  return sum;
}

#endif

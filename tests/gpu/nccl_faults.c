/* Preloaded into workers, between Horovod and NCCL. One worker has a fault: the one that removes the
 * file EDL_TEST_NCCL_FAULT, whose first letter says which.
 *
 *   die, freeze, error   where NCCL's communicator of a ring is initialized
 *   after                it dies when all have initialized it
 *   late                 the same, and for the others the initialization ends 2 s later
 *   skip                 it leaves out an allreduce, which then cannot end for the others
 *   remote error         NCCL reports an error of the communicator that is asked for one
 *
 * Each worker writes into EDL_TEST_NCCL_FAULT.PID what becomes of its communicators, a letter for
 * each: i (initialized), a (aborted), d (destroyed). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct {
  char internal[128];
} ncclUniqueId;
enum { SYSTEM_ERROR = 2, REMOTE_ERROR = 6 };
#define NEXT(name, ...) ((int (*)(__VA_ARGS__))dlsym(RTLD_NEXT, name))

static char fault_among(const char* faults) {
  const char* path = getenv("EDL_TEST_NCCL_FAULT");
  char fault = 0;
  int file = path != NULL ? open(path, O_RDONLY) : -1;
  if (file < 0) return 0;
  if (read(file, &fault, 1) != 1 || strchr(faults, fault) == NULL) fault = 0;
  close(file);
  return fault != 0 && unlink(path) == 0 ? fault : 0;
}

static int open_beside(const char* suffix, int flags) {
  char path[4096];
  const char* fault = getenv("EDL_TEST_NCCL_FAULT");
  if (fault == NULL) return -1;
  snprintf(path, sizeof path, "%s.%s", fault, suffix);
  return open(path, flags, 0600);
}

static void note(char what) {
  char pid[16];
  snprintf(pid, sizeof pid, "%d", (int)getpid());
  int file = open_beside(pid, O_WRONLY | O_CREAT | O_APPEND);
  if (file >= 0 && write(file, &what, 1) != 1) abort();
  if (file >= 0) close(file);
}

/* Say to the others that this initialization ends late for them. */
static void make_late(ncclUniqueId id) {
  int file = open_beside("late", O_WRONLY | O_CREAT | O_TRUNC);
  if (write(file, &id, sizeof id) != sizeof id) abort();
  close(file);
}

static int is_late(ncclUniqueId id) {
  ncclUniqueId late;
  int file = open_beside("late", O_RDONLY);
  int same = file >= 0 && read(file, &late, sizeof late) == sizeof late &&
             memcmp(&late, &id, sizeof id) == 0;
  if (file >= 0) close(file);
  return same;
}

int ncclCommInitRank(void** comm, int size, ncclUniqueId id, int rank) {
  char fault = size > 1 ? fault_among("dfeal") : 0;
  if (fault == 'd') kill(getpid(), SIGKILL);
  if (fault == 'f') kill(getpid(), SIGSTOP);
  if (fault == 'e') return SYSTEM_ERROR;
  if (fault == 'l') make_late(id);
  int result = NEXT("ncclCommInitRank", void**, int, ncclUniqueId, int)(comm, size, id, rank);
  if (result == 0) note('i');
  if (fault == 'a' || fault == 'l') {
    usleep(300000); /* the others return from it, too */
    kill(getpid(), SIGKILL);
  }
  if (is_late(id)) sleep(2);
  return result;
}

int ncclCommAbort(void* comm) {
  int result = NEXT("ncclCommAbort", void*)(comm);
  note('a');
  return result;
}

int ncclCommDestroy(void* comm) {
  int result = NEXT("ncclCommDestroy", void*)(comm);
  note('d');
  return result;
}

int ncclCommGetAsyncError(void* comm, int* error) {
  static void* broken = NULL;
  int result = NEXT("ncclCommGetAsyncError", void*, int*)(comm, error);
  if (broken == NULL && fault_among("r") != 0) broken = comm;
  if (broken != NULL && broken == comm) *error = REMOTE_ERROR;
  return result;
}

int ncclAllReduce(const void* in, void* out, size_t count, int type, int op, void* comm, void* stream) {
  if (fault_among("s") != 0) return 0;
  return NEXT("ncclAllReduce", const void*, void*, size_t, int, int, void*, void*)(
      in, out, count, type, op, comm, stream);
}

/* Preloaded into workers: one of them dies, freezes or fails where NCCL's communicator of a ring is
 * initialized. The file EDL_TEST_NCCL_FAULT says which fault; the worker that removes it has it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

typedef struct {
  char internal[128];
} ncclUniqueId;
typedef int (*init_rank)(void**, int, ncclUniqueId, int);
enum { SYSTEM_ERROR = 2 };

int ncclCommInitRank(void** comm, int size, ncclUniqueId id, int rank) {
  const char* path = getenv("EDL_TEST_NCCL_FAULT");
  char fault = 0;
  int file = size > 1 && path != NULL ? open(path, O_RDONLY) : -1;
  if (file >= 0) {
    if (read(file, &fault, 1) != 1) fault = 0;
    close(file);
    if (unlink(path) != 0) fault = 0;
  }
  if (fault == 'd') kill(getpid(), SIGKILL);
  if (fault == 'f') kill(getpid(), SIGSTOP);
  if (fault == 'e') return SYSTEM_ERROR;
  return ((init_rank)dlsym(RTLD_NEXT, "ncclCommInitRank"))(comm, size, id, rank);
}

/* A wall clock that is wrong by SKEW_S seconds, for the process that has this preloaded.

   CLOCK_MONOTONIC stays what it is. Deadlines by the wall clock are the process's own, so they are
   set right again on their way to the kernel. (Debian's libfaketime 0.9.10 does not do for Python
   3.11: clock_nanosleep() with an absolute monotonic time, which is time.sleep(), fails with EINVAL.) */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

#define EPOCH_S 1000000000 /* a greater number of seconds is no monotonic time */

static long skew(void) {
  static long seconds, known; /* read once: getenv() beside a setenv() is not safe */
  if (!known) {
    const char *text = getenv("SKEW_S");
    seconds = text == NULL ? 0 : atol(text);
    known = 1;
  }
  return seconds;
}

static struct timespec right(const struct timespec *told) {
  struct timespec real = *told;
  real.tv_sec -= told->tv_sec > EPOCH_S ? skew() : 0;
  return real;
}

/* What would be called without us. */
#define NEXT(name)                                                       \
  ({                                                                     \
    static __typeof__(&name) next;                                       \
    if (next == NULL) next = (__typeof__(&name))dlsym(RTLD_NEXT, #name); \
    next;                                                                \
  })

int clock_gettime(clockid_t clock, struct timespec *now) {
  int failed = NEXT(clock_gettime)(clock, now);
  if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += skew();
  return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  int failed = NEXT(gettimeofday)(now, zone);
  if (!failed) now->tv_sec += skew();
  return failed;
}

time_t time(time_t *now) {
  struct timespec told;
  clock_gettime(CLOCK_REALTIME, &told);
  if (now != NULL) *now = told.tv_sec;
  return told.tv_sec;
}

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *until,
                    struct timespec *left) {
  struct timespec real = flags & TIMER_ABSTIME ? right(until) : *until;
  return NEXT(clock_nanosleep)(clock, flags, &real, left);
}

int pthread_cond_timedwait(pthread_cond_t *restrict one, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict until) {
  static __typeof__(&pthread_cond_timedwait) next;
  struct timespec real = right(until);
  /* dlsym() may find the one for programs older than glibc 2.3.2, whose conditions differ. */
  if (next == NULL) next = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
  if (next == NULL) next = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
  return next(one, mutex, &real);
}

int pthread_cond_clockwait(pthread_cond_t *restrict one, pthread_mutex_t *restrict mutex,
                           clockid_t clock, const struct timespec *restrict until) {
  struct timespec real = right(until);
  return NEXT(pthread_cond_clockwait)(one, mutex, clock, &real);
}

int pthread_mutex_timedlock(pthread_mutex_t *restrict mutex,
                            const struct timespec *restrict until) {
  struct timespec real = right(until);
  return NEXT(pthread_mutex_timedlock)(mutex, &real);
}

int sem_timedwait(sem_t *restrict one, const struct timespec *restrict until) {
  struct timespec real = right(until);
  return NEXT(sem_timedwait)(one, &real);
}

int sem_clockwait(sem_t *restrict one, clockid_t clock, const struct timespec *restrict until) {
  struct timespec real = right(until);
  return NEXT(sem_clockwait)(one, clock, &real);
}

/* Shifts the wall clock of the program that it is preloaded into, by the number
 * of nanoseconds that the file named in CHAOS_CLOCK holds as eight bytes. The
 * file is mapped, so a change acts at once. Monotonic clocks are left alone.
 * The calls go to the kernel directly: looking up the C library's own functions
 * may allocate memory, and an allocator that asks for the time would recurse. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *shift;

__attribute__((constructor)) static void open_shift(void) {
  const char *path = getenv("CHAOS_CLOCK");
  int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  if (fd < 0) return;
  void *page = mmap(NULL, sizeof *shift, PROT_READ, MAP_SHARED, fd, 0);
  if (page != MAP_FAILED) shift = page;
  close(fd);
}

static int shifted(clockid_t clock, struct timespec *ts) {
  int failed = (int)syscall(SYS_clock_gettime, clock, ts);
  if (failed || !shift || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE)) return failed;
  int64_t ns = (int64_t)ts->tv_sec * 1000000000 + ts->tv_nsec + *shift;
  ts->tv_sec = ns / 1000000000;
  ts->tv_nsec = ns % 1000000000;
  return 0;
}

int clock_gettime(clockid_t clock, struct timespec *ts) { return shifted(clock, ts); }

int gettimeofday(struct timeval *restrict tv, void *restrict zone) {
  (void)zone;
  struct timespec ts;
  if (!tv || shifted(CLOCK_REALTIME, &ts)) return -1;
  tv->tv_sec = ts.tv_sec;
  tv->tv_usec = ts.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *out) {
  struct timespec ts;
  if (shifted(CLOCK_REALTIME, &ts)) return -1;
  if (out) *out = ts.tv_sec;
  return ts.tv_sec;
}

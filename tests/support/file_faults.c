// A file layer that fails: preloaded, it lets calls on paths below a folder fail from a chosen one
// on. `file_faults_from(1, ...)` is a disk that is full, stale or read-only from the start.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { kOpen = 1, kWrite = 2, kSync = 4, kRename = 8, kMakeFolder = 16, kLock = 32 };

static char folder[PATH_MAX];
static long from, seen, most = LONG_MAX;  // of failing calls
static int error_number, which;

void file_faults_from(long call, int error, int calls, const char* below) {
  snprintf(folder, sizeof folder, "%s", below);
  if (getenv("FILE_FAULTS_MOST")) most = atol(getenv("FILE_FAULTS_MOST"));
  from = call, error_number = error, which = calls, seen = 0;
}

long file_faults_seen(void) { return seen; }

// For processes that are told by their environment: FILE_FAULTS=call:error:calls:folder
__attribute__((constructor)) static void FromEnvironment(void) {
  const char* text = getenv("FILE_FAULTS");
  long call;
  int error, calls, used = 0;
  if (text && sscanf(text, "%ld:%d:%d:%n", &call, &error, &calls, &used) == 3 && used)
    file_faults_from(call, error, calls, text + used);
}

static int Fails(int kind, const char* path) {
  if (!from || !(which & kind) || !path || strncmp(path, folder, strlen(folder))) return 0;
  if (++seen < from || seen - from >= most) return 0;
  errno = error_number;
  return 1;
}

static int FailsOn(int kind, int descriptor) {
  char link[64], path[PATH_MAX];
  if (!from || !(which & kind)) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  ssize_t size = readlink(link, path, sizeof path - 1);
  if (size < 0) return 0;
  path[size] = 0;
  return Fails(kind, path);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define OPEN(name)                                         \
  int name(const char* path, int flags, ...) {             \
    va_list more;                                          \
    va_start(more, flags);                                 \
    mode_t mode = va_arg(more, mode_t);                    \
    va_end(more);                                          \
    if (Fails(kOpen, path)) return -1;                     \
    return REAL(name)(path, flags, mode);                  \
  }
OPEN(open)
OPEN(open64)

// The C++ reader opens files below a descriptor of the store, by a call that libc has no name for.
long syscall(long number, ...) {
  va_list more;
  va_start(more, number);
  long given[6];
  for (int i = 0; i < 6; ++i) given[i] = va_arg(more, long);
  va_end(more);
  char link[64], path[PATH_MAX];
  // openat2; of folders that are listed no call is seen of other readers either
  if (number == 437 && from && !(*(const unsigned long*)given[2] & O_DIRECTORY)) {
    snprintf(link, sizeof link, "/proc/self/fd/%ld", given[0]);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size > 0) {
      snprintf(path + size, sizeof path - size, "/%s", (const char*)given[1]);
      if (Fails(kOpen, path)) return -1;
    }
  }
  return REAL(syscall)(number, given[0], given[1], given[2], given[3], given[4], given[5]);
}

ssize_t write(int descriptor, const void* data, size_t size) {
  return FailsOn(kWrite, descriptor) ? -1 : REAL(write)(descriptor, data, size);
}
// Below the folder no disk is waited for: what is tested is who is told of a failure.
int fsync(int descriptor) {
  long before = seen;
  if (FailsOn(kSync, descriptor)) return -1;
  return seen > before ? 0 : REAL(fsync)(descriptor);
}
int flock(int descriptor, int operation) {
  return FailsOn(kLock, descriptor) ? -1 : REAL(flock)(descriptor, operation);
}
int mkdir(const char* path, mode_t mode) {
  return Fails(kMakeFolder, path) ? -1 : REAL(mkdir)(path, mode);
}
int rename(const char* from_path, const char* to_path) {
  return Fails(kRename, to_path) ? -1 : REAL(rename)(from_path, to_path);
}

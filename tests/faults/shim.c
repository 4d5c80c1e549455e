// A library to preload (LD_PRELOAD) that delays system calls, fails them, shortens them, or
// ends the process in them, as BRIGADE_FAULTS says:
//
//   BRIGADE_FAULTS="call=rename,path=*/manifest*,rank=0,delay=5000;call=read,nth=3,errno=EIO"
//
// Rules are separated by ';' and tried in turn; their fields by ','. Which calls:
//   call=NAME|NAME   open read write fsync rename unlink link mkdir close ftruncate flock
//                    connect accept; "open" is openat and fopen too, "read" pread and
//                    readv, "write" pwrite and writev, "fsync" fdatasync, "accept" accept4.
//   path=PATTERN     as a shell's, over the whole path ('*' matches '/' too). A descriptor
//                    has the path in /proc/self/fd, e.g. "socket:*"; rename and link match
//                    by either path. Default: all.
//   rank=N           only in processes with RANK=N
//   program=PATTERN  only in processes of that name
//   nth=N, nth=N+    the N-th such call of a process, or all from it on; default: all
//   once=FILE        only if FILE can be made, so once for all processes and restarts
// Effects, in this order:
//   delay=MS         the call is made so much later
//   until=FILE       the call is made when FILE exists, or after a minute
//   signal=NUMBER    the process gets this signal
//   errno=NAME       the call is not made and fails: EIO, ENOSPC, ENOMEM, ... or a number
//   short=N          at most N bytes are read or written
//
// BRIGADE_FAULTS_LOG=FILE gets a line "RANK PID CALL PATH" before each fault. Calls
// inside the C library (printf, fgets) do not come here; those of C++ streams on files do.
#define _GNU_SOURCE
#undef _FORTIFY_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { kMaxRules = 16 };

struct Rule {
  const char* calls;
  const char* path;
  const char* rank;
  const char* program;
  const char* once;
  const char* until;
  long nth;
  int and_later;
  long delay_ms;
  int signal;
  int error;
  long most_bytes;  // -1: all
  atomic_long seen;
};

static struct Rule rules[kMaxRules];
static int rule_count;
static pthread_once_t parsed = PTHREAD_ONCE_INIT;

static _Noreturn void wrong(const char* what, const char* value) {
  dprintf(2, "BRIGADE_FAULTS: %s '%s'\n", what, value);
  _exit(99);
}

static long number(const char* text) {
  char* end;
  const long value = strtol(text, &end, 10);
  if (end == text || (*end && strcmp(end, "+") != 0)) wrong("no number:", text);
  return value;
}

static int error_of(const char* name) {
  for (int error = 1; error < 134; ++error) {
    const char* each = strerrorname_np(error);
    if (each && strcmp(each, name) == 0) return error;
  }
  return (int)number(name);
}

static void set_field(struct Rule* rule, const char* name, const char* value) {
  if (strcmp(name, "call") == 0)
    rule->calls = value;
  else if (strcmp(name, "path") == 0)
    rule->path = value;
  else if (strcmp(name, "rank") == 0)
    rule->rank = value;
  else if (strcmp(name, "program") == 0)
    rule->program = value;
  else if (strcmp(name, "nth") == 0) {
    rule->nth = number(value);
    rule->and_later = value[strlen(value) - 1] == '+';
  } else if (strcmp(name, "once") == 0)
    rule->once = value;
  else if (strcmp(name, "delay") == 0)
    rule->delay_ms = number(value);
  else if (strcmp(name, "until") == 0)
    rule->until = value;
  else if (strcmp(name, "signal") == 0)
    rule->signal = (int)number(value);
  else if (strcmp(name, "errno") == 0)
    rule->error = error_of(value);
  else if (strcmp(name, "short") == 0)
    rule->most_bytes = number(value);
  else
    wrong("no field named", name);
}

static int is_in_list(const char* list, const char* name) {
  const size_t length = strlen(name);
  for (const char* at = list; (at = strstr(at, name)); at += length) {
    const int begins = at == list || at[-1] == '|';
    if (begins && (at[length] == '|' || at[length] == '\0')) return 1;
  }
  return 0;
}

static void check_calls(const char* calls) {
  static const char* const known =
      "open|read|write|fsync|rename|unlink|link|mkdir|close|ftruncate|flock|connect|accept";
  char copy[256];
  snprintf(copy, sizeof copy, "%s", calls);
  char* rest = NULL;
  for (char* call = strtok_r(copy, "|", &rest); call; call = strtok_r(NULL, "|", &rest))
    if (!is_in_list(known, call)) wrong("no call named", call);
}

static void parse_rule(char* text) {
  struct Rule* rule = &rules[rule_count];
  *rule = (struct Rule){.nth = 1, .and_later = 1, .most_bytes = -1};
  char* rest = NULL;
  for (char* field = strtok_r(text, ",", &rest); field;
       field = strtok_r(NULL, ",", &rest)) {
    char* equals = strchr(field, '=');
    if (!equals) wrong("no '=' in", field);
    *equals = '\0';
    set_field(rule, field, equals + 1);
  }
  if (!rule->calls) wrong("a rule without", "call=");
  check_calls(rule->calls);
  ++rule_count;
}

static void parse(void) {
  const char* text = getenv("BRIGADE_FAULTS");
  if (!text) return;
  char* copy = strdup(text);  // rules point into it
  char* rest = NULL;
  for (char* rule = strtok_r(copy, ";", &rest); rule; rule = strtok_r(NULL, ";", &rest)) {
    if (rule_count == kMaxRules) wrong("too many rules:", rule);
    parse_rule(rule);
  }
}

static const char* path_of(int fd, char* buffer) {
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t length = readlink(link, buffer, PATH_MAX);
  buffer[length < 0 ? 0 : length] = '\0';
  return buffer;
}

static void write_log(const char* call, const char* path) {
  const char* file = getenv("BRIGADE_FAULTS_LOG");
  if (!file) return;
  const char* rank = getenv("RANK");
  char line[PATH_MAX + 100];
  const int length =
      snprintf(line, sizeof line, "%s %d %s %s\n", rank ? rank : "-", getpid(), call, path);
  const long fd = syscall(SYS_openat, AT_FDCWD, file, O_WRONLY | O_CREAT | O_APPEND, 0644);
  if (fd < 0) return;
  if (syscall(SYS_write, fd, line, length) < 0) { /* the fault happens all the same */
  }
  syscall(SYS_close, fd);
}

static int is_first(const char* once) {
  if (!once) return 1;
  const long fd = syscall(SYS_openat, AT_FDCWD, once, O_WRONLY | O_CREAT | O_EXCL, 0644);
  if (fd >= 0) syscall(SYS_close, fd);
  return fd >= 0;
}

static void sleep_ms(long ms) {
  struct timespec left = {ms / 1000, ms % 1000 * 1000000};
  while (nanosleep(&left, &left) != 0 && errno == EINTR) {
  }
}

// Checked at each call, because a forked process may have another rank and name.
static int is_for_this_process(const struct Rule* rule) {
  const char* rank = getenv("RANK");
  char name[32];
  if (rule->rank && (!rank || strcmp(rank, rule->rank) != 0)) return 0;
  if (!rule->program) return 1;
  prctl(PR_GET_NAME, name);
  return fnmatch(rule->program, program_invocation_short_name, 0) == 0 ||
         fnmatch(rule->program, name, 0) == 0;
}

static int happens(struct Rule* rule, const char* path, const char* other) {
  if (!is_for_this_process(rule)) return 0;
  if (rule->path && fnmatch(rule->path, path, 0) != 0 &&
      (!other || fnmatch(rule->path, other, 0) != 0))
    return 0;
  const long seen = atomic_fetch_add(&rule->seen, 1) + 1;
  if (seen != rule->nth && !(rule->and_later && seen > rule->nth)) return 0;
  return is_first(rule->once);
}

// Returns 0, or the errno with which the call shall fail. `bytes`, unless null: how many
// the call may read or write. If `path` is null, uses the descriptor's.
static int fault(const char* call, int fd, const char* path, const char* other,
                 size_t* bytes) {
  pthread_once(&parsed, parse);
  char buffer[PATH_MAX + 1];
  for (struct Rule* rule = rules; rule < rules + rule_count; ++rule) {
    if (!is_in_list(rule->calls, call)) continue;
    const int before = errno;
    if (!path) path = path_of(fd, buffer);
    errno = before;
    if (!happens(rule, path, other)) continue;
    write_log(call, path);
    if (rule->delay_ms) sleep_ms(rule->delay_ms);
    if (rule->until)
      for (int i = 0; i < 6000 && access(rule->until, F_OK) != 0; ++i) sleep_ms(10);
    if (rule->signal) kill(getpid(), rule->signal);
    errno = before;
    if (rule->error) return rule->error;
    if (bytes && rule->most_bytes >= 0 && *bytes > (size_t)rule->most_bytes)
      *bytes = (size_t)rule->most_bytes;
  }
  return 0;
}

// Finds the C library's own function of this name, once.
#define NEXT(function)                                                    \
  (*({                                                                    \
    static __typeof__(&function) next_function;                           \
    if (!next_function)                                                   \
      next_function = (__typeof__(&function))dlsym(RTLD_NEXT, #function); \
    next_function;                                                        \
  }))
#define FAIL_IF(condition_errno, failed)     \
  do {                                       \
    const int fault_errno = condition_errno; \
    if (fault_errno) {                       \
      errno = fault_errno;                   \
      return failed;                         \
    }                                        \
  } while (0)

#define MODE_OF(flags, mode)                                 \
  mode_t mode = 0;                                           \
  if ((flags)&O_CREAT || ((flags)&O_TMPFILE) == O_TMPFILE) { \
    va_list more;                                            \
    va_start(more, flags);                                   \
    mode = va_arg(more, mode_t);                             \
    va_end(more);                                            \
  }
#define OPEN(function)                                \
  int function(const char* path, int flags, ...) {    \
    MODE_OF(flags, mode)                              \
    FAIL_IF(fault("open", -1, path, NULL, NULL), -1); \
    return NEXT(function)(path, flags, mode);         \
  }
#define OPENAT(function)                                       \
  int function(int folder, const char* path, int flags, ...) { \
    MODE_OF(flags, mode)                                       \
    FAIL_IF(fault("open", -1, path, NULL, NULL), -1);          \
    return NEXT(function)(folder, path, flags, mode);          \
  }
#define FOPEN(function)                                 \
  FILE* function(const char* path, const char* mode) {  \
    FAIL_IF(fault("open", -1, path, NULL, NULL), NULL); \
    return NEXT(function)(path, mode);                  \
  }
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)
FOPEN(fopen)
FOPEN(fopen64)

ssize_t read(int fd, void* into, size_t bytes) {
  FAIL_IF(fault("read", fd, NULL, NULL, &bytes), -1);
  return NEXT(read)(fd, into, bytes);
}
ssize_t write(int fd, const void* from, size_t bytes) {
  FAIL_IF(fault("write", fd, NULL, NULL, &bytes), -1);
  return NEXT(write)(fd, from, bytes);
}
#define PREAD(function, offset)                                   \
  ssize_t function(int fd, void* into, size_t bytes, offset at) { \
    FAIL_IF(fault("read", fd, NULL, NULL, &bytes), -1);           \
    return NEXT(function)(fd, into, bytes, at);                   \
  }
#define PWRITE(function, offset)                                        \
  ssize_t function(int fd, const void* from, size_t bytes, offset at) { \
    FAIL_IF(fault("write", fd, NULL, NULL, &bytes), -1);                \
    return NEXT(function)(fd, from, bytes, at);                         \
  }
PREAD(pread, off_t)
PREAD(pread64, off64_t)
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)
// Shortens to the first buffer only.
#define VECTOR(function, call)                                                    \
  ssize_t function(int fd, const struct iovec* pieces, int count) {               \
    size_t bytes = SIZE_MAX;                                                      \
    FAIL_IF(fault(call, fd, NULL, NULL, &bytes), -1);                             \
    if (bytes == SIZE_MAX || count < 1) return NEXT(function)(fd, pieces, count); \
    struct iovec first = pieces[0];                                               \
    if (first.iov_len > bytes) first.iov_len = bytes;                             \
    return NEXT(function)(fd, &first, 1);                                         \
  }
VECTOR(readv, "read")
VECTOR(writev, "write")

#define ON_DESCRIPTOR(function, call)               \
  int function(int fd) {                            \
    FAIL_IF(fault(call, fd, NULL, NULL, NULL), -1); \
    return NEXT(function)(fd);                      \
  }
ON_DESCRIPTOR(fsync, "fsync")
ON_DESCRIPTOR(fdatasync, "fsync")
// The descriptor is closed even where the call reports an error, as in Linux.
int close(int fd) {
  const int error = fault("close", fd, NULL, NULL, NULL);
  const int result = NEXT(close)(fd);
  FAIL_IF(error, -1);
  return result;
}
int flock(int fd, int operation) {
  FAIL_IF(fault("flock", fd, NULL, NULL, NULL), -1);
  return NEXT(flock)(fd, operation);
}
int ftruncate(int fd, off_t length) {
  FAIL_IF(fault("ftruncate", fd, NULL, NULL, NULL), -1);
  return NEXT(ftruncate)(fd, length);
}
int ftruncate64(int fd, off64_t length) {
  FAIL_IF(fault("ftruncate", fd, NULL, NULL, NULL), -1);
  return NEXT(ftruncate64)(fd, length);
}

int rename(const char* from, const char* to) {
  FAIL_IF(fault("rename", -1, to, from, NULL), -1);
  return NEXT(rename)(from, to);
}
int renameat(int from_folder, const char* from, int to_folder, const char* to) {
  FAIL_IF(fault("rename", -1, to, from, NULL), -1);
  return NEXT(renameat)(from_folder, from, to_folder, to);
}
int link(const char* from, const char* to) {
  FAIL_IF(fault("link", -1, to, from, NULL), -1);
  return NEXT(link)(from, to);
}
int unlink(const char* path) {
  FAIL_IF(fault("unlink", -1, path, NULL, NULL), -1);
  return NEXT(unlink)(path);
}
// C++'s filesystem::remove calls this.
int remove(const char* path) {
  FAIL_IF(fault("unlink", -1, path, NULL, NULL), -1);
  return NEXT(remove)(path);
}
int mkdir(const char* path, mode_t mode) {
  FAIL_IF(fault("mkdir", -1, path, NULL, NULL), -1);
  return NEXT(mkdir)(path, mode);
}

int connect(int fd, const struct sockaddr* address, socklen_t length) {
  FAIL_IF(fault("connect", fd, NULL, NULL, NULL), -1);
  return NEXT(connect)(fd, address, length);
}
int accept(int fd, struct sockaddr* address, socklen_t* length) {
  FAIL_IF(fault("accept", fd, NULL, NULL, NULL), -1);
  return NEXT(accept)(fd, address, length);
}
int accept4(int fd, struct sockaddr* address, socklen_t* length, int flags) {
  FAIL_IF(fault("accept", fd, NULL, NULL, NULL), -1);
  return NEXT(accept4)(fd, address, length, flags);
}

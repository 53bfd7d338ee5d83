/* A stand-in for libnvidia-ml.so.1 that takes its values, errors and hangs from a text file; see README.md. */
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

typedef unsigned int uint;
typedef unsigned long long u64;

enum {
  SUCCESS = 0,
  UNINITIALIZED = 1,
  INVALID_ARGUMENT = 2,
  NOT_SUPPORTED = 3,
  NOT_FOUND = 6,
  INSUFFICIENT_SIZE = 7,
  DRIVER_NOT_LOADED = 9,
  TIMEOUT = 10,
  GPU_IS_LOST = 15,
  VERSION_MISMATCH = 25
};

enum { MAX_DEVICES = 64, MAX_PROCESSES = 64, MAX_XIDS = 256, MAX_FAULTS = 64, SYMBOL = 64 };
enum { NONE = -1, XID_CRITICAL_ERROR = 8 };

/* Values that are one number; the names are the keys of the state file. */
enum {
  UTILIZATION,
  MEMORY_UTILIZATION,
  POWER,
  POWER_LIMIT,
  ENERGY,
  MEMORY_TOTAL,
  MEMORY_USED,
  MEMORY_RESERVED,
  TEMPERATURE,
  SM_CLOCK,
  CLOCK_EVENTS,
  CLOCK_EVENTS_SUPPORTED,
  MIG_MODE,
  VALUES
};
static const char *const value_names[VALUES] = {
    "utilization",     "memory_utilization", "power_milliwatts", "power_limit_milliwatts", "energy_millijoules",
    "memory_total",    "memory_used",        "memory_reserved",  "temperature",            "sm_clock_mhz",
    "clock_events",    "clock_events_supported", "mig_mode"};

struct fault { char symbol[SYMBOL]; int code; int hang; };
struct process { uint pid; u64 bytes; int sm, draws; };
struct device {
  char uuid[96], name[96], pci[32];
  int parent, lost; /* parent: index of the physical GPU of a MIG instance */
  int known[VALUES];
  u64 values[VALUES];
  int processes_known, process_count, xid_count, fault_count;
  struct process processes[MAX_PROCESSES];
  u64 xids[MAX_XIDS];
  struct fault faults[MAX_FAULTS];
};
struct state {
  char driver_version[80];
  u64 driver_generation;
  int device_count, fault_count;
  struct device devices[MAX_DEVICES];
  struct fault faults[MAX_FAULTS];
};
/* What a handle points to: one for each UUID ever seen, so that a handle outlives its device. */
struct handle { char uuid[96]; int watched, xids_told; };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct state state, parsed;
static struct stat state_file;
static struct handle handles[4 * MAX_DEVICES];
static int initialised;
static u64 initialised_generation;

static void copy(char *to, size_t size, const char *from) { snprintf(to, size, "%s", from); }

static void die(const char *what, const char *line) {
  fprintf(stderr, "fake_nvml: %s: %s\n", what, line);
  abort();
}

static void add_fault(struct fault *faults, int *count, const char *rest, int hang) {
  if (*count == MAX_FAULTS) die("too many faults", rest);
  struct fault *f = &faults[(*count)++];
  int found = sscanf(rest, "%63s %d", f->symbol, &f->code);
  if (found != (hang ? 1 : 2)) die("bad fault", rest);
  f->hang = hang;
}

static void add_process(struct device *d, const char *rest, int draws) {
  char bytes[32], sm[32] = "-";
  struct process *p = &d->processes[d->process_count++];
  if (d->process_count > MAX_PROCESSES || sscanf(rest, "%u %31s %31s", &p->pid, bytes, sm) < 2) die("bad process", rest);
  p->bytes = strcmp(bytes, "-") ? strtoull(bytes, NULL, 10) : UINT64_MAX;
  p->sm = strcmp(sm, "-") ? atoi(sm) : NONE;
  p->draws = draws;
  d->processes_known = 1;
}

static void parse_device_line(struct device *d, const char *key, const char *rest) {
  for (int i = 0; i < VALUES; i++)
    if (!strcmp(key, value_names[i])) {
      d->known[i] = 1;
      d->values[i] = strtoull(rest, NULL, 0);
      return;
    }
  if (!strcmp(key, "name")) copy(d->name, sizeof d->name, rest);
  else if (!strcmp(key, "pci")) copy(d->pci, sizeof d->pci, rest);
  else if (!strcmp(key, "lost")) d->lost = 1;
  else if (!strcmp(key, "processes")) d->processes_known = 1;
  else if (!strcmp(key, "process")) add_process(d, rest, 0);
  else if (!strcmp(key, "graphics")) add_process(d, rest, 1);
  else if (!strcmp(key, "error")) add_fault(d->faults, &d->fault_count, rest, 0);
  else if (!strcmp(key, "hang")) add_fault(d->faults, &d->fault_count, rest, 1);
  else if (!strcmp(key, "xid") && d->xid_count < MAX_XIDS) d->xids[d->xid_count++] = strtoull(rest, NULL, 0);
  else die("unknown key in a device", key);
}

static void parse_line(struct state *s, int *physical, char *line) {
  char key[SYMBOL] = "", *rest;
  int used = 0;
  if (sscanf(line, "%63s%n", key, &used) != 1 || key[0] == '#') return;
  for (rest = line + used; *rest == ' '; rest++) {}
  if (!strcmp(key, "gpu") || !strcmp(key, "mig")) {
    if (s->device_count == MAX_DEVICES) die("too many devices", line);
    struct device *d = &s->devices[s->device_count];
    copy(d->uuid, sizeof d->uuid, rest);
    d->parent = key[0] == 'g' ? NONE : *physical;
    if (key[0] == 'g') *physical = s->device_count;
    s->device_count++;
  } else if (s->device_count) parse_device_line(&s->devices[s->device_count - 1], key, rest);
  else if (!strcmp(key, "driver_version")) copy(s->driver_version, sizeof s->driver_version, rest);
  else if (!strcmp(key, "driver_generation")) s->driver_generation = strtoull(rest, NULL, 0);
  else if (!strcmp(key, "error")) add_fault(s->faults, &s->fault_count, rest, 0);
  else if (!strcmp(key, "hang")) add_fault(s->faults, &s->fault_count, rest, 1);
  else die("unknown key", line);
}

/* Read the state file again if it is another one than before. The caller holds the lock. */
static void refresh(void) {
  const char *path = getenv("FAKE_NVML_STATE");
  struct stat now;
  if (!path || stat(path, &now)) return;
  if (now.st_ino == state_file.st_ino && now.st_size == state_file.st_size &&
      now.st_mtim.tv_sec == state_file.st_mtim.tv_sec && now.st_mtim.tv_nsec == state_file.st_mtim.tv_nsec)
    return;
  FILE *file = fopen(path, "r");
  if (!file) return;
  char line[512];
  int physical = NONE;
  memset(&parsed, 0, sizeof parsed);
  while (fgets(line, sizeof line, file)) {
    line[strcspn(line, "\n")] = 0;
    parse_line(&parsed, &physical, line);
  }
  fclose(file);
  state = parsed;
  state_file = now;
}

static const struct fault *find_fault(const struct fault *faults, int count, const char *symbol) {
  for (int i = 0; i < count; i++)
    if (!strcmp(faults[i].symbol, symbol)) return &faults[i];
  return NULL;
}

static struct device *find_device(const struct handle *h) {
  for (int i = 0; i < state.device_count; i++)
    if (!strcmp(state.devices[i].uuid, h->uuid)) return &state.devices[i];
  return NULL;
}

static int is_lost(const struct device *d) { return d->lost || (d->parent != NONE && state.devices[d->parent].lost); }

static struct handle *handle_of(const char *uuid) {
  for (size_t i = 0; i < sizeof handles / sizeof *handles; i++) {
    if (!handles[i].uuid[0]) copy(handles[i].uuid, sizeof handles[i].uuid, uuid);
    if (!strcmp(handles[i].uuid, uuid)) return &handles[i];
  }
  die("too many handles", uuid);
  return NULL;
}

/* One look at the state for one call: its result code, or a fault that says to wait. */
static int look(const char *symbol, const struct handle *h, struct device *out, const struct fault **fault) {
  refresh();
  *fault = find_fault(state.faults, state.fault_count, symbol);
  struct device *d = h ? find_device(h) : NULL;
  if (!*fault && d) *fault = find_fault(d->faults, d->fault_count, symbol);
  if (*fault) return (*fault)->code;
  if (!initialised || initialised_generation != state.driver_generation) return UNINITIALIZED;
  if (!h) return SUCCESS;
  if (!d || is_lost(d)) return GPU_IS_LOST;
  if (out) *out = *d;
  return SUCCESS;
}

/* Every call begins here: hangs while the state says so, then answers with an error code or the device's values. */
static int enter(const char *symbol, const struct handle *h, struct device *out) {
  for (;;) {
    const struct fault *fault;
    pthread_mutex_lock(&lock);
    int code = look(symbol, h, out, &fault);
    int hang = fault && fault->hang;
    pthread_mutex_unlock(&lock);
    if (!hang) return code;
    usleep(10000);
  }
}

static int number(const char *symbol, const struct handle *h, int value, u64 *out) {
  struct device d;
  int code = enter(symbol, h, &d);
  if (code) return code;
  *out = d.values[value];
  return d.known[value] ? SUCCESS : NOT_SUPPORTED;
}

static int number32(const char *symbol, const struct handle *h, int value, uint *out) {
  u64 wide = 0;
  int code = number(symbol, h, value, &wide);
  if (!code) *out = (uint)wide;
  return code;
}

static int text(const char *symbol, const struct handle *h, size_t offset, char *out, uint size) {
  struct device d;
  int code = enter(symbol, h, &d);
  if (code) return code;
  const char *from = (const char *)&d + offset;
  if (!*from) return NOT_SUPPORTED;
  copy(out, size, from);
  return SUCCESS;
}

/* --- library ------------------------------------------------------------------------------------------------- */

int nvmlInitWithFlags(uint flags) {
  (void)flags;
  int code = enter(__func__, NULL, NULL);
  if (code && code != UNINITIALIZED) return code;
  if (!state_file.st_ino) return DRIVER_NOT_LOADED;
  pthread_mutex_lock(&lock);
  if (initialised_generation != state.driver_generation) initialised = 0;
  initialised++;
  initialised_generation = state.driver_generation;
  for (size_t i = 0; initialised == 1 && i < sizeof handles / sizeof *handles; i++) handles[i].watched = 0;
  pthread_mutex_unlock(&lock);
  return SUCCESS;
}

int nvmlShutdown(void) {
  int code = enter(__func__, NULL, NULL);
  if (code) return code;
  pthread_mutex_lock(&lock);
  initialised--;
  pthread_mutex_unlock(&lock);
  return SUCCESS;
}

const char *nvmlErrorString(int code) {
  (void)code;
  return "Unknown Error";
}

int nvmlSystemGetDriverVersion(char *out, uint size) {
  int code = enter(__func__, NULL, NULL);
  if (code) return code;
  pthread_mutex_lock(&lock);
  copy(out, size, state.driver_version);
  pthread_mutex_unlock(&lock);
  return out[0] ? SUCCESS : NOT_SUPPORTED;
}

/* The n-th device with this parent. */
static int child(const char *symbol, const struct handle *h, int parent_is_gpu, uint n, struct handle **out) {
  int code = enter(symbol, h, NULL);
  if (code) return code;
  pthread_mutex_lock(&lock);
  struct device *of = h ? find_device(h) : NULL;
  int parent = of ? (int)(of - state.devices) : NONE;
  code = parent_is_gpu ? NOT_FOUND : INVALID_ARGUMENT;
  for (int i = 0; i < state.device_count; i++)
    if (state.devices[i].parent == parent && n-- == 0) {
      *out = handle_of(state.devices[i].uuid);
      code = SUCCESS;
      break;
    }
  pthread_mutex_unlock(&lock);
  return code;
}

int nvmlDeviceGetCount_v2(uint *count) {
  int code = enter(__func__, NULL, NULL);
  if (code) return code;
  pthread_mutex_lock(&lock);
  *count = 0;
  for (int i = 0; i < state.device_count; i++) *count += state.devices[i].parent == NONE;
  pthread_mutex_unlock(&lock);
  return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(uint index, struct handle **out) {
  struct handle *found;
  int code = child(__func__, NULL, 0, index, &found);
  if (!code) code = enter(__func__, found, NULL); /* a fault or loss of that GPU alone */
  if (!code) *out = found;
  return code;
}

/* --- what a device is ---------------------------------------------------------------------------------------- */

int nvmlDeviceGetUUID(struct handle *h, char *out, uint size) {
  return text(__func__, h, offsetof(struct device, uuid), out, size);
}

int nvmlDeviceGetName(struct handle *h, char *out, uint size) {
  return text(__func__, h, offsetof(struct device, name), out, size);
}

struct pci { char legacy[16]; uint domain, bus, device, device_id, subsystem_id; char id[32]; };

int nvmlDeviceGetPciInfo_v3(struct handle *h, struct pci *out) {
  memset(out, 0, sizeof *out);
  return text(__func__, h, offsetof(struct device, pci), out->id, sizeof out->id);
}

int nvmlDeviceGetMigMode(struct handle *h, uint *current, uint *pending) {
  int code = number32(__func__, h, MIG_MODE, current);
  if (!code) *pending = *current;
  return code;
}

int nvmlDeviceGetMaxMigDeviceCount(struct handle *h, uint *count) {
  int code = enter(__func__, h, NULL);
  if (!code) *count = 7;
  return code;
}

int nvmlDeviceGetMigDeviceHandleByIndex(struct handle *h, uint index, struct handle **out) {
  return child(__func__, h, 1, index, out);
}

/* --- what a device does -------------------------------------------------------------------------------------- */

struct utilization { uint gpu, memory; };

int nvmlDeviceGetUtilizationRates(struct handle *h, struct utilization *out) {
  struct device d;
  int code = enter(__func__, h, &d);
  if (code) return code;
  out->gpu = (uint)d.values[UTILIZATION];
  out->memory = (uint)d.values[MEMORY_UTILIZATION];
  return d.known[UTILIZATION] && d.known[MEMORY_UTILIZATION] ? SUCCESS : NOT_SUPPORTED;
}

int nvmlDeviceGetPowerUsage(struct handle *h, uint *out) { return number32(__func__, h, POWER, out); }

int nvmlDeviceGetEnforcedPowerLimit(struct handle *h, uint *out) { return number32(__func__, h, POWER_LIMIT, out); }

int nvmlDeviceGetPowerManagementLimit(struct handle *h, uint *out) { return number32(__func__, h, POWER_LIMIT, out); }

int nvmlDeviceGetTotalEnergyConsumption(struct handle *h, u64 *out) { return number(__func__, h, ENERGY, out); }

int nvmlDeviceGetTemperature(struct handle *h, int sensor, uint *out) {
  (void)sensor;
  return number32(__func__, h, TEMPERATURE, out);
}

struct temperature { uint version; int sensor, celsius; };

int nvmlDeviceGetTemperatureV(struct handle *h, struct temperature *out) {
  if (out->version != 0x100000C) return VERSION_MISMATCH;
  return number32(__func__, h, TEMPERATURE, (uint *)&out->celsius);
}

int nvmlDeviceGetClockInfo(struct handle *h, int type, uint *out) {
  return type == 1 ? number32(__func__, h, SM_CLOCK, out) : INVALID_ARGUMENT;
}

int nvmlDeviceGetCurrentClocksEventReasons(struct handle *h, u64 *out) {
  return number(__func__, h, CLOCK_EVENTS, out);
}

int nvmlDeviceGetCurrentClocksThrottleReasons(struct handle *h, u64 *out) {
  return number(__func__, h, CLOCK_EVENTS, out);
}

int nvmlDeviceGetSupportedClocksEventReasons(struct handle *h, u64 *out) {
  return number(__func__, h, CLOCK_EVENTS_SUPPORTED, out);
}

int nvmlDeviceGetSupportedClocksThrottleReasons(struct handle *h, u64 *out) {
  return number(__func__, h, CLOCK_EVENTS_SUPPORTED, out);
}

/* What other exporters ask for and ours does not; constant, and "not supported" where a passive board has none. */

int nvmlSystemGetCudaDriverVersion(int *out) {
  *out = 13000;
  return enter(__func__, NULL, NULL);
}

int nvmlDeviceGetEncoderUtilization(struct handle *h, uint *percent, uint *period_microseconds) {
  *percent = 0;
  *period_microseconds = 167000;
  return enter(__func__, h, NULL);
}

int nvmlDeviceGetDecoderUtilization(struct handle *h, uint *percent, uint *period_microseconds) {
  *percent = 0;
  *period_microseconds = 167000;
  return enter(__func__, h, NULL);
}

int nvmlDeviceGetPcieThroughput(struct handle *h, int direction, uint *kilobytes_per_second) {
  *kilobytes_per_second = direction ? 800000 : 1200000;
  return enter(__func__, h, NULL);
}

int nvmlDeviceGetFanSpeed(struct handle *h, uint *percent) {
  int code = enter(__func__, h, NULL);
  *percent = 0;
  return code ? code : NOT_SUPPORTED;
}

struct field_value { uint id, scope; long long timestamp, latency; int type, code; u64 value; };

int nvmlDeviceGetFieldValues(struct handle *h, int count, struct field_value *values) {
  for (int i = 0; i < count; i++) values[i].code = NOT_SUPPORTED;
  return enter(__func__, h, NULL);
}

struct memory { u64 total, free, used; };
struct memory_v2 { uint version; u64 total, reserved, free, used; };

static int memory(const char *symbol, struct handle *h, struct memory_v2 *out) {
  struct device d;
  int code = enter(symbol, h, &d);
  if (code) return code;
  out->total = d.values[MEMORY_TOTAL];
  out->used = d.values[MEMORY_USED];
  out->reserved = d.values[MEMORY_RESERVED];
  out->free = out->total - out->used - out->reserved;
  return d.known[MEMORY_TOTAL] && d.known[MEMORY_USED] ? SUCCESS : NOT_SUPPORTED;
}

int nvmlDeviceGetMemoryInfo_v2(struct handle *h, struct memory_v2 *out) {
  return out->version == 0x2000028 ? memory(__func__, h, out) : VERSION_MISMATCH;
}

/* The first version counts what the driver reserves as used. */
int nvmlDeviceGetMemoryInfo(struct handle *h, struct memory *out) {
  struct memory_v2 v2;
  int code = memory(__func__, h, &v2);
  if (!code) *out = (struct memory){v2.total, v2.free, v2.used + v2.reserved};
  return code;
}

/* --- processes ----------------------------------------------------------------------------------------------- */

struct process_info { uint pid; u64 bytes; uint gpu_instance, compute_instance; };

static int processes(const char *symbol, struct handle *h, uint *count, struct process_info *out, int draws) {
  struct device d;
  int code = enter(symbol, h, &d);
  if (code) return code;
  if (!d.processes_known) return NOT_SUPPORTED;
  uint room = *count;
  *count = 0;
  for (int i = 0; i < d.process_count; i++) {
    if (d.processes[i].draws != draws) continue;
    if (*count < room)
      out[*count] = (struct process_info){d.processes[i].pid, d.processes[i].bytes, UINT32_MAX, UINT32_MAX};
    ++*count;
  }
  return *count <= room ? SUCCESS : INSUFFICIENT_SIZE;
}

int nvmlDeviceGetComputeRunningProcesses_v3(struct handle *h, uint *count, struct process_info *out) {
  return processes(__func__, h, count, out, 0);
}

int nvmlDeviceGetComputeRunningProcesses_v2(struct handle *h, uint *count, struct process_info *out) {
  return processes(__func__, h, count, out, 0);
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(struct handle *h, uint *count, struct process_info *out) {
  return processes(__func__, h, count, out, 1);
}

struct process_sample { uint pid; u64 microseconds; uint sm, memory, encoder, decoder; };

int nvmlDeviceGetProcessUtilization(struct handle *h, struct process_sample *out, uint *count, u64 since) {
  struct device d;
  struct timespec now;
  int code = enter(__func__, h, &d);
  if (code) return code;
  if (!d.processes_known) return NOT_SUPPORTED;
  clock_gettime(CLOCK_REALTIME, &now);
  u64 microseconds = (u64)now.tv_sec * 1000000 + (u64)now.tv_nsec / 1000;
  uint room = *count;
  *count = 0;
  for (int i = 0; i < d.process_count && microseconds > since; i++) {
    if (d.processes[i].sm == NONE) continue;
    if (out && *count < room)
      out[*count] = (struct process_sample){d.processes[i].pid, microseconds, (uint)d.processes[i].sm, 0, 0, 0};
    ++*count;
  }
  if (!*count) return NOT_FOUND;
  return out && *count <= room ? SUCCESS : INSUFFICIENT_SIZE;
}

/* --- events -------------------------------------------------------------------------------------------------- */

struct event { struct handle *device; u64 type, data; uint gpu_instance, compute_instance; };

int nvmlEventSetCreate(void **set) {
  int code = enter(__func__, NULL, NULL);
  if (!code) *set = handles; /* there is one set for all */
  return code;
}

int nvmlEventSetFree(void *set) {
  (void)set;
  return enter(__func__, NULL, NULL);
}

int nvmlDeviceGetSupportedEventTypes(struct handle *h, u64 *out) {
  int code = enter(__func__, h, NULL);
  if (!code) *out = XID_CRITICAL_ERROR;
  return code;
}

int nvmlDeviceRegisterEvents(struct handle *h, u64 types, void *set) {
  (void)set;
  int code = enter(__func__, h, NULL);
  if (code) return code;
  if (types != XID_CRITICAL_ERROR) return NOT_SUPPORTED;
  pthread_mutex_lock(&lock);
  struct device *d = find_device(h);
  h->watched = 1;
  h->xids_told = d ? d->xid_count : 0; /* what happened before is not told */
  pthread_mutex_unlock(&lock);
  return SUCCESS;
}

/* Events are delivered for a lost GPU too: Xid 79 is how one learns of it. */
static int next_event(struct event *out) {
  for (size_t i = 0; i < sizeof handles / sizeof *handles && handles[i].uuid[0]; i++) {
    struct device *d = find_device(&handles[i]);
    if (!handles[i].watched || !d) continue;
    if (handles[i].xids_told > d->xid_count) handles[i].xids_told = d->xid_count;
    if (handles[i].xids_told == d->xid_count) continue;
    *out = (struct event){&handles[i], XID_CRITICAL_ERROR, d->xids[handles[i].xids_told++], UINT32_MAX, UINT32_MAX};
    return 1;
  }
  return 0;
}

int nvmlEventSetWait_v2(void *set, struct event *out, uint timeout_milliseconds) {
  (void)set;
  for (uint waited = 0;; waited += 5) {
    int code = enter(__func__, NULL, NULL);
    if (code) return code;
    pthread_mutex_lock(&lock);
    int found = next_event(out);
    pthread_mutex_unlock(&lock);
    if (found) return SUCCESS;
    if (waited >= timeout_milliseconds) return TIMEOUT;
    usleep(5000);
  }
}

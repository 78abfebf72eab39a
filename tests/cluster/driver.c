// A driver as far as hocket asks one: two H200 and their libcuda.so.1 and libnvidia-ml.so.1, where
// there is no GPU. The layouts are those of cuda.h and nvml.h, declared here once more.
//
// It reads CUDA_VISIBLE_DEVICES (UUIDs) and CUDA_MPS_ACTIVE_THREAD_PERCENTAGE as a driver does.
// STAND_IN=mig|exclusive|old|pcie makes it another machine.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kGpus = 2, kMigs = 3, kNotSupported = 3, kNotFound = 6, kInsufficientSize = 7 };

static const char* const kUuids[] = {
    "GPU-00112233-4455-6677-8899-aabbccddeeff", "GPU-10112233-4455-6677-8899-aabbccddeeff",
    "MIG-a0112233-4455-6677-8899-aabbccddeeff", "MIG-b0112233-4455-6677-8899-aabbccddeeff",
};

static int is(const char* what) {
  const char* found = getenv("STAND_IN");
  return found && strcmp(found, what) == 0;
}

// ---- libcuda.so.1

static int device_at(int ordinal) {  // of the four, by CUDA_VISIBLE_DEVICES; -1: none
  const char* visible = getenv("CUDA_VISIBLE_DEVICES");
  if (!visible) return ordinal < kGpus ? ordinal : -1;
  char* list = strdup(visible);
  int found = -1;
  for (char* word = strtok(list, ","); word; word = strtok(NULL, ",")) {
    for (int i = 0; i < 4; ++i) {
      if (strcmp(word, kUuids[i]) == 0 && ordinal-- == 0) found = i;
    }
  }
  free(list);
  return found;
}

static int to_bytes(int device, unsigned char* out) {
  const char* text = kUuids[device] + 4;
  for (int i = 0; i < 16; text += 2) {
    if (*text == '-') ++text;
    unsigned value;
    sscanf(text, "%2x", &value);
    out[i++] = (unsigned char)value;
  }
  return 0;
}

int cuInit(unsigned flags) { return (int)flags; }

int cuDeviceGet(int* device, int ordinal) {
  *device = device_at(ordinal);
  return *device < 0 ? 101 : 0;
}

int cuDeviceGetUuid(unsigned char* uuid, int device) { return to_bytes(device < 2 ? device : 0, uuid); }

int cuDeviceGetUuid_v2(unsigned char* uuid, int device) { return to_bytes(device, uuid); }

int cuDeviceGetAttribute(int* value, int attribute, int device) {
  const char* share = getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
  (void)device;
  *value = 132 * (share && getenv("CUDA_MPS_PIPE_DIRECTORY") ? atoi(share) : 100) / 100;
  return attribute == 16 ? 0 : 1;
}

// ---- libnvidia-ml.so.1

typedef const char* Device;  // one of kUuids

struct Memory { unsigned long long total, free, used; };
struct Metric { unsigned id; int code; double value; const char *name, *long_name, *unit; };
struct Sample { int number; };
struct Request {
  unsigned version, count;
  struct Sample *first, *second;
  struct Metric metrics[98];  // as many as the first driver that had them
};
struct Support { unsigned version, supported; };

static int samples;

static int put(char* out, unsigned size, const char* text) {
  return snprintf(out, size, "%s", text) < (int)size ? 0 : kInsufficientSize;
}

int nvmlInit_v2(void) { return 0; }
const char* nvmlErrorString(int code) { return code == kNotFound ? "Not Found" : "Not Supported"; }
int nvmlSystemGetDriverVersion(char* out, unsigned size) { return put(out, size, "580.159.03"); }
int nvmlDeviceGetCount_v2(unsigned* count) { return *count = kGpus, 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, Device* out) { return *out = kUuids[i], 0; }
int nvmlDeviceGetUUID(Device device, char* out, unsigned size) { return put(out, size, device); }

int nvmlDeviceGetHandleByUUID(const char* uuid, Device* out) {
  for (int i = 0; i < 4; ++i) {
    if (strcmp(uuid, kUuids[i]) == 0) return *out = kUuids[i], 0;
  }
  return kNotFound;
}

int nvmlDeviceGetName(Device device, char* out, unsigned size) {
  return put(out, size, device[0] == 'M' ? "NVIDIA H200 MIG 3g.71gb" : "NVIDIA H200");
}

int nvmlDeviceGetMemoryInfo(Device device, struct Memory* out) {
  (void)device;
  *out = (struct Memory){150754820096ull, 113066115072ull, 37688705024ull};
  return 0;
}

int nvmlDeviceGetComputeMode(Device device, unsigned* mode) {
  return (void)device, *mode = is("exclusive") ? 3 : 0, 0;
}

int nvmlDeviceGetMigMode(Device device, unsigned* now, unsigned* later) {
  return (void)device, *now = *later = is("mig"), is("old") ? kNotSupported : 0;
}

int nvmlDeviceGetMaxMigDeviceCount(Device device, unsigned* count) {
  return (void)device, *count = kMigs, 0;
}

int nvmlDeviceGetMigDeviceHandleByIndex(Device device, unsigned i, Device* out) {
  (void)device;
  if (i == 1) return kNotFound;  // a place that no instance takes
  return *out = kUuids[i == 0 ? 2 : 3], 0;
}

int nvmlDeviceGetP2PStatus(Device one, Device other, unsigned what, unsigned* status) {
  return *status = one == other || what != 2 || is("pcie"), 0;
}

int nvmlDeviceGetTopologyCommonAncestor(Device one, Device other, unsigned* level) {
  return *level = one == other ? 0 : 40, 0;
}

int nvmlGpmQueryDeviceSupport(Device device, struct Support* out) {
  (void)device;
  if (out->version != 1) return kNotSupported;
  return out->supported = !is("old"), 0;
}

int nvmlGpmSampleAlloc(struct Sample** out) { return *out = calloc(1, sizeof(struct Sample)), 0; }
int nvmlGpmSampleFree(struct Sample* sample) { return free(sample), 0; }
int nvmlGpmSampleGet(Device device, struct Sample* out) { return (void)device, out->number = ++samples, 0; }

int nvmlGpmMetricsGet(struct Request* request) {  // of metric 5, ten times its number between two
  if (request->version != 1 || request->second->number != request->first->number + 1) return 2;
  for (unsigned i = 0; i < request->count; ++i) {
    struct Metric* metric = &request->metrics[i];
    metric->code = metric->id == 5 ? kNotSupported : 0;
    metric->value = 10.0 * metric->id + i;
    metric->name = "a name";
  }
  return 0;
}

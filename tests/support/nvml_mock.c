/* A libnvidia-ml.so.1 that plays the machine of a description file (environment variable NVML_MOCK): what NVML answers
 * to the questions that collc asks. Structures follow nvml.h. The file has one statement per line:
 *
 *   init CODE                          nvmlInit fails
 *   count CODE                         nvmlDeviceGetCount fails
 *   gpu BUS UUID NAME...               a GPU; what follows is about it
 *   sm MAJOR MINOR | pcie GENERATION WIDTH | mig UUID | fabric STATE CLIQUE | c2c LINKS MBPS
 *   link STATE VERSION MBPS TYPE BUS   the next NVLink; MBPS 0: the field is not known; TYPE -1: nor the question
 *   fail QUESTION CODE LINK            that question about this GPU (and NVLink; -1: any) fails
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, FUNCTION_NOT_FOUND = 13 };
enum { MAX_GPUS = 32, MAX_LINKS = 36, MAX_MIGS = 8, MAX_FAILS = 16 };

struct link {
  int state, version, mbps, type;
  char bus[32];
};

struct fail {
  char question[48];
  int code, link;
};

struct device {
  struct device *owner; /* of a MIG instance */
  char bus[32], uuid[96], name[96];
  int major, minor, generation, width, links, migs, fabric, clique, c2c, c2c_mbps, fails;
  struct link link[MAX_LINKS];
  struct fail fail[MAX_FAILS];
  struct device *mig[MAX_MIGS];
};

typedef struct {
  char legacy[16];
  unsigned domain, bus, device, id, subsystem;
  char text[32];
} pci_info;

typedef struct {
  uint32_t field, scope;
  int64_t timestamp, latency;
  uint32_t type, code;
  union {
    unsigned u;
    unsigned long long ull;
  } value;
} field_value;

typedef struct {
  unsigned version;
  uint8_t cluster[16];
  uint32_t status, clique;
  uint8_t state;
  uint32_t health;
} fabric_info;

static struct device gpus[MAX_GPUS], instances[MAX_MIGS];
static int gpu_count, instance_count, init_code, count_code;

static void statement(char *line) {
  char word[32] = "", a[32] = "";
  int n[5] = {0}, used = 0;
  if (sscanf(line, "%31s %n", word, &used) != 1) return;
  char *rest = line + used;
  struct device *gpu = gpu_count ? &gpus[gpu_count - 1] : NULL;
  if (!strcmp(word, "init")) {
    init_code = atoi(rest);
  } else if (!strcmp(word, "count")) {
    count_code = atoi(rest);
  } else if (!strcmp(word, "gpu") && gpu_count < MAX_GPUS) {
    gpu = &gpus[gpu_count++];
    sscanf(rest, "%31s %95s %95[^\n]", gpu->bus, gpu->uuid, gpu->name);
  } else if (!gpu) {
    return;
  } else if (!strcmp(word, "sm")) {
    sscanf(rest, "%d %d", &gpu->major, &gpu->minor);
  } else if (!strcmp(word, "pcie")) {
    sscanf(rest, "%d %d", &gpu->generation, &gpu->width);
  } else if (!strcmp(word, "fabric")) {
    sscanf(rest, "%d %d", &gpu->fabric, &gpu->clique);
  } else if (!strcmp(word, "c2c")) {
    sscanf(rest, "%d %d", &gpu->c2c, &gpu->c2c_mbps);
  } else if (!strcmp(word, "mig") && gpu->migs < MAX_MIGS && instance_count < MAX_MIGS) {
    struct device *instance = &instances[instance_count++];
    instance->owner = gpu;
    gpu->mig[gpu->migs++] = instance;
    sscanf(rest, "%95s", instance->uuid);
  } else if (!strcmp(word, "link") && gpu->links < MAX_LINKS) {
    if (sscanf(rest, "%d %d %d %d %31s", &n[0], &n[1], &n[2], &n[3], a) == 5) {
      struct link *link = &gpu->link[gpu->links++];
      *link = (struct link){n[0], n[1], n[2], n[3], ""};
      memcpy(link->bus, a, sizeof link->bus - 1);
    }
  } else if (!strcmp(word, "fail") && gpu->fails < MAX_FAILS) {
    struct fail *fail = &gpu->fail[gpu->fails++];
    sscanf(rest, "%47s %d %d", fail->question, &fail->code, &fail->link);
  }
}

static int failing(const struct device *gpu, const char *question, int link) {
  for (int i = 0; i < gpu->fails; i++) {
    const struct fail *fail = &gpu->fail[i];
    if (!strcmp(fail->question, question) && (fail->link < 0 || fail->link == link)) return fail->code;
  }
  return OK;
}

#define ASK(question, link)                       \
  do {                                            \
    int code = failing(device, question, (link)); \
    if (code) return code;                        \
  } while (0)

int nvmlInitWithFlags(unsigned flags) {
  (void)flags;
  const char *path = getenv("NVML_MOCK");
  FILE *file = path ? fopen(path, "r") : NULL;
  char line[512];
  if (!file) return 9; /* the driver is not loaded */
  while (fgets(line, sizeof line, file)) statement(line);
  fclose(file);
  return init_code;
}

int nvmlShutdown(void) { return OK; }

const char *nvmlErrorString(int code) { return code == 999 ? "Unknown Error" : "mock error"; }

int nvmlDeviceGetCount_v2(unsigned *count) {
  *count = (unsigned)gpu_count;
  return count_code;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct device **device) {
  if (index >= (unsigned)gpu_count) return INVALID_ARGUMENT;
  *device = &gpus[index];
  return failing(*device, "handle", -1);
}

int nvmlDeviceGetPciInfo_v3(struct device *device, pci_info *info) {
  ASK("pci", -1);
  memset(info, 0, sizeof *info);
  snprintf(info->text, sizeof info->text, "%s", device->bus);
  return OK;
}

int nvmlDeviceGetUUID(struct device *device, char *text, unsigned size) {
  ASK("uuid", -1);
  snprintf(text, size, "%s", device->uuid);
  return OK;
}

int nvmlDeviceGetName(struct device *device, char *text, unsigned size) {
  ASK("name", -1);
  snprintf(text, size, "%s", device->name);
  return OK;
}

int nvmlDeviceGetCudaComputeCapability(struct device *device, int *major, int *minor) {
  ASK("sm", -1);
  *major = device->major;
  *minor = device->minor;
  return device->major ? OK : NOT_SUPPORTED;
}

int nvmlDeviceGetMaxPcieLinkGeneration(struct device *device, unsigned *generation) {
  *generation = (unsigned)device->generation;
  return device->generation ? OK : NOT_SUPPORTED;
}

int nvmlDeviceGetMaxPcieLinkWidth(struct device *device, unsigned *width) {
  *width = (unsigned)device->width;
  return device->width ? OK : NOT_SUPPORTED;
}

int nvmlDeviceGetMigMode(struct device *device, unsigned *current, unsigned *pending) {
  ASK("mig", -1);
  *current = *pending = device->migs > 0;
  return device->major >= 8 ? OK : NOT_SUPPORTED;
}

int nvmlDeviceGetMaxMigDeviceCount(struct device *device, unsigned *count) {
  (void)device;
  *count = 7;
  return OK;
}

int nvmlDeviceGetMigDeviceHandleByIndex(struct device *device, unsigned index, struct device **instance) {
  if (index >= (unsigned)device->migs) return NOT_FOUND;
  *instance = device->mig[index];
  return OK;
}

int nvmlDeviceGetNvLinkState(struct device *device, unsigned link, unsigned *state) {
  ASK("state", (int)link);
  if (!device->links) return NOT_SUPPORTED;
  if (link >= (unsigned)device->links) return INVALID_ARGUMENT;
  *state = (unsigned)device->link[link].state;
  return OK;
}

int nvmlDeviceGetNvLinkVersion(struct device *device, unsigned link, unsigned *version) {
  ASK("version", (int)link);
  if (link >= (unsigned)device->links) return INVALID_ARGUMENT;
  *version = (unsigned)device->link[link].version;
  return OK;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(struct device *device, unsigned link, pci_info *info) {
  ASK("remote", (int)link);
  if (link >= (unsigned)device->links) return INVALID_ARGUMENT;
  memset(info, 0, sizeof *info);
  snprintf(info->text, sizeof info->text, "%s", device->link[link].bus);
  return OK;
}

int nvmlDeviceGetNvLinkRemoteDeviceType(struct device *device, unsigned link, unsigned *type) {
  ASK("type", (int)link);
  if (link >= (unsigned)device->links) return INVALID_ARGUMENT;
  if (device->link[link].type < 0) return FUNCTION_NOT_FOUND;
  *type = (unsigned)device->link[link].type;
  return OK;
}

int nvmlDeviceGetFieldValues(struct device *device, int count, field_value *values) {
  ASK("fields", -1);
  for (int i = 0; i < count; i++) {
    field_value *v = &values[i];
    const struct link *link = v->scope < (unsigned)device->links ? &device->link[v->scope] : NULL;
    v->type = 1; /* unsigned int */
    v->code = OK;
    v->value.ull = 0;
    if (v->field == 91 && device->links) {
      v->value.u = (unsigned)device->links;
    } else if (v->field == 164 && link && link->mbps) {
      v->value.u = (unsigned)link->mbps;
    } else if (v->field == 170 && device->c2c) {
      v->value.u = (unsigned)device->c2c;
    } else if (v->field == 171 && device->c2c) {
      v->value.u = 1;
    } else if (v->field == 172 && device->c2c) {
      v->type = 3; /* unsigned long long */
      v->value.ull = (unsigned long long)device->c2c_mbps;
    } else {
      v->code = NOT_SUPPORTED;
    }
  }
  return OK;
}

int nvmlDeviceGetGpuFabricInfoV(struct device *device, fabric_info *info) {
  ASK("fabric", -1);
  if (!device->fabric) return NOT_SUPPORTED;
  memset(info->cluster, 0xab, sizeof info->cluster);
  info->clique = (uint32_t)device->clique;
  info->state = (uint8_t)device->fabric;
  return OK;
}

// Runs the proxy thread on cores near its NICs, in the memory node that the NICs are attached to. The functions read sysfs
// and block for nothing else.
#pragma once
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace collc {

// Parses a list of cores of the kernel, such as "0-3,8-11". Stops at the first text in another form.
inline cpu_set_t read_cores(const char *text) {
  cpu_set_t listed_cores;
  CPU_ZERO(&listed_cores);
  while (*text >= '0' && *text <= '9') {
    char *end = nullptr;
    const unsigned long first = std::strtoul(text, &end, 10);
    unsigned long last = first;
    if (*end == '-') last = std::strtoul(end + 1, &end, 10);
    for (unsigned long core = first; core <= std::min<unsigned long>(last, CPU_SETSIZE - 1); ++core)
      CPU_SET(core, &listed_cores);
    if (*end != ',') break;
    text = end + 1;
  }
  return listed_cores;
}

// Returns the cores of `allowed` that are near to any of these interfaces; all of `allowed` if their nearness is unknown or
// none of them is near.
inline cpu_set_t cores_near(const std::vector<std::string> &interfaces, const cpu_set_t &allowed, const std::string &net) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  for (const std::string &interface : interfaces) {
    FILE *const file = std::fopen((net + "/" + interface + "/device/local_cpulist").c_str(), "re");
    if (file == nullptr) return allowed;
    char text[4096] = "";
    const bool is_read = std::fgets(text, sizeof text, file) != nullptr;
    std::fclose(file);
    if (!is_read) return allowed;
    const cpu_set_t listed_cores = read_cores(text);
    CPU_OR(&cores, &cores, &listed_cores);
  }
  CPU_AND(&cores, &cores, &allowed);
  return CPU_COUNT(&cores) == 0 ? allowed : cores;
}

// Restricts a thread to the cores of its process that are near to these interfaces.
inline void run_near(pthread_t thread, const std::vector<std::string> &interfaces) {
  cpu_set_t allowed;
  if (interfaces.empty() || pthread_getaffinity_np(thread, sizeof allowed, &allowed) != 0) return;
  const cpu_set_t cores = cores_near(interfaces, allowed, "/sys/class/net");
  if (CPU_EQUAL(&cores, &allowed) == 0) pthread_setaffinity_np(thread, sizeof cores, &cores);
}

}  // namespace collc

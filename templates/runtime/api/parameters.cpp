// NCCL's functions that read NCCL's own parameters and reset its log. No communicator is in them, so they go to the real NCCL.
#include "api/api.h"

using namespace collc;

using Parameter = void *;  // a handle of the real NCCL

extern "C" {

COLLC_PASSED_ON(ParamBind, (Parameter * handle, const char *key), handle, key);
COLLC_PASSED_ON(ParamGetI8, (Parameter handle, int8_t *value), handle, value);
COLLC_PASSED_ON(ParamGetI16, (Parameter handle, int16_t *value), handle, value);
COLLC_PASSED_ON(ParamGetI32, (Parameter handle, int32_t *value), handle, value);
COLLC_PASSED_ON(ParamGetI64, (Parameter handle, int64_t *value), handle, value);
COLLC_PASSED_ON(ParamGetU8, (Parameter handle, uint8_t *value), handle, value);
COLLC_PASSED_ON(ParamGetU16, (Parameter handle, uint16_t *value), handle, value);
COLLC_PASSED_ON(ParamGetU32, (Parameter handle, uint32_t *value), handle, value);
COLLC_PASSED_ON(ParamGetU64, (Parameter handle, uint64_t *value), handle, value);
COLLC_PASSED_ON(ParamGetStr, (Parameter handle, const char **value), handle, value);
COLLC_PASSED_ON(ParamGet, (Parameter handle, void *value, int most, int *bytes), handle, value, most, bytes);
COLLC_PASSED_ON(ParamGetParameter, (const char *key, const char **value, int *bytes), key, value, bytes);
COLLC_PASSED_ON(ParamGetAllParameterKeys, (const char ***keys, int *count), keys, count);

// Functions without a result do nothing if there is no real NCCL, or if it lacks them.
static void pass_on(const char *function) {
  guarded(function, [&]() -> Status {
    if (void *const theirs = find_real(function)) reinterpret_cast<void (*)(void)>(theirs)();
    return {};
  });
}

COLLC_API void pncclParamDumpAll(void) { pass_on("ncclParamDumpAll"); }
COLLC_ALIAS(void, ParamDumpAll, (void));

COLLC_API void pncclResetDebugInit(void) { pass_on("ncclResetDebugInit"); }
COLLC_ALIAS(void, ResetDebugInit, (void));

COLLC_API void ncclResetDebugInitInternal(void) { pass_on("ncclResetDebugInitInternal"); }

}  // extern "C"

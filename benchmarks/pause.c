/* A pause of the device, and how long the device was held up between two pauses: for `benchmarks.busy`. */

#include <stdint.h>
#include <string.h>
#include <time.h>

#include "xla/ffi/api/c_api.h"

#define EXPORTED __attribute__((visibility("default")))
#define MOST 100000

static uint64_t pause_nanoseconds, end_of_last, gaps[MOST];
static int64_t count;

static uint64_t now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * UINT64_C(1000000000) + time.tv_nsec;
}

/* Forget the gaps; the next pauses take so long. */
EXPORTED void begin(uint64_t nanoseconds) { pause_nanoseconds = nanoseconds, end_of_last = 0, count = 0; }

/* The gaps in nanoseconds, and how many. */
EXPORTED const uint64_t* found(int64_t* number) {
  *number = count;
  return gaps;
}

EXPORTED XLA_FFI_Error* pause_device(XLA_FFI_CallFrame* frame) {
  if (frame->extension_start != NULL && (int)frame->extension_start->type == XLA_FFI_Extension_Metadata) {
    XLA_FFI_Metadata* metadata = ((XLA_FFI_Metadata_Extension*)frame->extension_start)->metadata;
    metadata->api_version = frame->api->api_version;
    metadata->traits = 0;
    metadata->state_type_id.type_id = 0;
    return NULL;
  }
  uint64_t time = now();
  if (end_of_last && count < MOST) gaps[count++] = time - end_of_last;
  memcpy(((XLA_FFI_Buffer*)frame->rets.rets[0])->data, ((XLA_FFI_Buffer*)frame->args.args[0])->data, sizeof(float));
  struct timespec left = {0, pause_nanoseconds};
  nanosleep(&left, NULL);
  end_of_last = now();
  return NULL;
}

/* The hand-over of tapped values on CUDA, where the operands are in the device's memory, and are not there yet when the
 * runtime calls the handler: it calls it while it enqueues work on a stream. One model of GPU has run this, and a
 * stand-in for the driver (tests/programs/stand_in_for_cuda.c).
 *
 * `hostcb_cuda_tap` reserves a record in the device's ring, whose memory is pinned, and enqueues two things: the copy of the
 * operands into the record, and a function of the host, `arrive`, which shows the record to Python. The handler does not
 * wait for the device. What does not go by the ring goes through Python, which fetches the operands with `hostcb_cuda_fetch`
 * and so waits for the stream: then all values that were enqueued before have arrived, and the order is right.
 *
 * No thread waits for CUDA while it holds a ring's mutex, since `arrive` takes it. `arrive` may call neither CUDA nor Python.
 * The handler has no traits: a recording of it in a command buffer would fill one record again and again.
 *
 * The driver is opened when it is needed, so nothing of CUDA is needed to build or to load this library.
 */

#include "handover.h"

#include <dlfcn.h>
#include <stdio.h>

/* As in CUDA's header: CUresult, CUdeviceptr, CUstream, CUcontext, CUhostFn. */
typedef int Result;
typedef unsigned long long Address;
typedef struct CUstream_st* Stream;
typedef struct CUctx_st* Context;
typedef void (*HostFunction)(void*);

#define PORTABLE 1 /* memory that is pinned for all contexts */

static struct {
  Result (*name_of)(Result, const char**);
  Result (*context_of)(Stream, Context*);
  Result (*push_context)(Context);
  Result (*pop_context)(Context*);
  Result (*allocate)(void**, size_t, unsigned);
  Result (*copy)(void*, Address, size_t, Stream);
  Result (*call)(Stream, HostFunction, void*);
  Result (*wait_for)(Stream);
} driver;

static const struct {
  const char* name;
  void* function;
} functions[] = {
    {"cuGetErrorName", &driver.name_of},          {"cuStreamGetCtx", &driver.context_of},
    {"cuCtxPushCurrent_v2", &driver.push_context}, {"cuCtxPopCurrent_v2", &driver.pop_context},
    {"cuMemHostAlloc", &driver.allocate},          {"cuMemcpyDtoHAsync_v2", &driver.copy},
    {"cuLaunchHostFunc", &driver.call},            {"cuStreamSynchronize", &driver.wait_for},
};

/* Why the driver cannot be used; empty if it can. */
static char unusable[256];
static pthread_once_t opened = PTHREAD_ONCE_INIT;

static void open_driver(void) {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    const char* reason = dlerror();
    snprintf(unusable, sizeof unusable, "hostcb: CUDA's driver cannot be opened: %s", reason ? reason : "no reason");
    return;
  }
  for (size_t i = 0; i < sizeof functions / sizeof *functions; ++i) {
    void* found = dlsym(library, functions[i].name);
    if (found == NULL) {
      snprintf(unusable, sizeof unusable, "hostcb: CUDA's driver has no %s", functions[i].name);
      return;
    }
    *(void**)functions[i].function = found;
  }
}

/* The first call of the driver that failed. */
typedef struct {
  const char* function;
  Result code;
} Failure;

static int failed(Failure* failure, const char* function, Result code) {
  if (code != 0 && failure->code == 0) failure->function = function, failure->code = code;
  return code != 0;
}

static const char* described(const Failure* failure, char* text, size_t size) {
  const char* name = NULL;
  if (driver.name_of(failure->code, &name) != 0 || name == NULL) name = "an error without a name";
  snprintf(text, size, "hostcb: %s failed with %s (%d)", failure->function, name, failure->code);
  return text;
}

/* A call of the handler in this thread, for the functions that Python calls in the middle of it. */
typedef struct {
  XLA_FFI_CallFrame* frame;
  Stream stream;
  int32_t ordinal;
} Current;

static __thread Current current;
static __thread char said[256];

static XLA_FFI_Handler* python_handler;
static XLA_FFI_TypeId site_type = {0};

/* The handler ------------------------------------------------------------------------------------------------------ */

EXPORTED XLA_FFI_TypeId* hostcb_cuda_site_type(void) { return &site_type; }

EXPORTED XLA_FFI_Error* hostcb_cuda_instantiate(XLA_FFI_CallFrame* frame) { return new_site(frame, &site_type); }

static void end(Ring* ring, Record* record, int whole) {
  pthread_mutex_lock(&ring->mutex);
  int wake = arrived(ring, record, whole);
  pthread_mutex_unlock(&ring->mutex);
  if (wake) pthread_cond_broadcast(&ring->woken);
}

/* The stream has come to the end of a record's copies. */
static void arrive(void* record) { end(((Record*)record)->on_its_way, record, 1); }

static int enqueued(const Binding* binding, Record* record, const Current* call, Failure* failure) {
  char* to = (char*)record + aligned(sizeof(Record));
  for (int64_t i = 0; i < binding->count; ++i) {
    /* The first operand is the token. */
    const XLA_FFI_Buffer* operand = call->frame->args.args[i + 1];
    uint64_t size = binding->sizes[i];
    if (size && failed(failure, "cuMemcpyDtoHAsync_v2",
                       driver.copy(to, (Address)(uintptr_t)operand->data, size, call->stream)))
      return 0;
    to += aligned(size);
  }
  return !failed(failure, "cuLaunchHostFunc", driver.call(call->stream, arrive, record));
}

/* Whether the ring takes the value, or would but for a failure. */
static int taken(const Binding* binding, const Current* call, Failure* failure) {
  Ring* ring = binding->ring;
  pthread_mutex_lock(&ring->mutex);
  Record* record = reserve(binding, 1);
  pthread_mutex_unlock(&ring->mutex);
  if (record == NULL) return 0;
  if (!enqueued(binding, record, call, failure)) {
    /* The device may still write to the record. */
    if (driver.wait_for(call->stream) != 0) {
      pthread_mutex_lock(&ring->mutex);
      ring->given_up = 1;
      pthread_mutex_unlock(&ring->mutex);
    }
    end(ring, record, 0);
  }
  return 1;
}

static int has_token(const XLA_FFI_CallFrame* frame) {
  return frame->args.size > 0 && frame->args.types[0] == XLA_FFI_ArgType_BUFFER &&
         ((const XLA_FFI_Buffer*)frame->args.args[0])->dtype == XLA_FFI_DataType_TOKEN;
}

EXPORTED XLA_FFI_Error* hostcb_cuda_tap(XLA_FFI_CallFrame* frame) {
  if (told_about_itself(frame, site_type.type_id)) return NULL;
  Call call;
  XLA_FFI_Error* error = called(frame, &site_type, &call);
  if (error != NULL) return error;
  if (!has_token(frame))
    return refusal(frame, XLA_FFI_Error_Code_INVALID_ARGUMENT, "hostcb: the first operand of a tap must be a token");
  XLA_FFI_Stream_Get_Args got = {XLA_FFI_Stream_Get_Args_STRUCT_SIZE, NULL, frame->ctx, NULL};
  error = frame->api->XLA_FFI_Stream_Get(&got);
  if (error != NULL) return error;
  pthread_once(&opened, open_driver);
  if (unusable[0]) return refusal(frame, XLA_FFI_Error_Code_FAILED_PRECONDITION, unusable);

  Current mine = {frame, got.stream, call.ordinal}, outer = current;
  Failure failure = {NULL, 0};
  char text[256];
  Context context = NULL;
  if (failed(&failure, "cuStreamGetCtx", driver.context_of(mine.stream, &context)) ||
      failed(&failure, "cuCtxPushCurrent_v2", driver.push_context(context)))
    return refusal(frame, XLA_FFI_Error_Code_INTERNAL, described(&failure, text, sizeof text));
  if (!goes_by_ring(call.binding, frame) || !taken(call.binding, &mine, &failure)) {
    current = mine;
    error = through_python(python_handler, frame, &call);
    current = outer;
  }
  failed(&failure, "cuCtxPopCurrent_v2", driver.pop_context(&context));
  if (error == NULL && failure.code != 0)
    error = refusal(frame, XLA_FFI_Error_Code_INTERNAL, described(&failure, text, sizeof text));
  return error;
}

/* What Python calls ------------------------------------------------------------------------------------------------ */

EXPORTED void hostcb_cuda_set_python_handler(XLA_FFI_Handler* handler) { python_handler = handler; }

/* The device for which the current thread runs the handler in Python; -1 if it runs none. */
EXPORTED int32_t hostcb_cuda_ordinal(void) { return current.frame == NULL ? -1 : current.ordinal; }

/* The next two wait for the device, and other devices may wait for the interpreter lock meanwhile: Python calls them
 * without it, in the middle of a handler. They return NULL, or what failed. */

/* Copy the operands of the tap to these places, and wait until they are there. */
EXPORTED const char* hostcb_cuda_fetch(int64_t count, const uint64_t* sizes, void* const* places) {
  const Current* call = &current;
  if (call->frame == NULL || call->frame->args.size != count + 1) return "hostcb: this thread is in no tap of this form";
  Failure failure = {NULL, 0};
  for (int64_t i = 0; i < count && failure.code == 0; ++i) {
    const XLA_FFI_Buffer* operand = call->frame->args.args[i + 1];
    if (sizes[i])
      failed(&failure, "cuMemcpyDtoHAsync_v2",
             driver.copy(places[i], (Address)(uintptr_t)operand->data, sizes[i], call->stream));
  }
  /* Also after a failure: the device may write to the places. */
  failed(&failure, "cuStreamSynchronize", driver.wait_for(call->stream));
  return failure.code == 0 ? NULL : described(&failure, said, sizeof said);
}

/* Make a ring on pinned memory; as `hostcb_ring`, it lives for ever. */
EXPORTED const char* hostcb_cuda_ring(uint64_t capacity, void** data, Ring** ring) {
  Failure failure = {NULL, 0};
  if (current.frame == NULL) return "hostcb: this thread is in no tap";
  if (failed(&failure, "cuMemHostAlloc", driver.allocate(data, capacity, PORTABLE)))
    return described(&failure, said, sizeof said);
  *ring = ring_of(*data, capacity);
  if (*ring == NULL) return "hostcb: no memory for the ring of a device";
  (*ring)->pinned = 1;
  return NULL;
}

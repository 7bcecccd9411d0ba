/* A stand-in for CUDA's driver, and a handler that gives the hand-over a stream of it: for tests without a GPU.
 *
 * A stream is a thread that does its operations one after another, each after a delay. A copy takes the bytes when it is
 * enqueued: the memory of a CPU device is used again at once, that of a GPU only by later work of the stream. A function of
 * the driver fails if the test has said so; a failed stream fails for ever, and drops what is enqueued.
 */

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "xla/ffi/api/c_api.h"

#define EXPORTED __attribute__((visibility("default")))
#define STREAMS 8
#define ILLEGAL_ADDRESS 700

typedef struct Operation {
  struct Operation* next;
  void (*function)(void*);
  void *argument, *to, *bytes;
  size_t size;
} Operation;

typedef struct {
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  Operation *first, **last;
  int busy, held, broken;
} Queue;

static Queue queues[STREAMS];
static __thread int depth; /* of pushed contexts */
static int fails_after[8], code_of_failure[8], delay_in_microseconds;
static int64_t calls[8], most_depth_left;

enum { NAME, CONTEXT, PUSH, POP, ALLOCATE, COPY, CALL, WAIT };

static int fails(int function) {
  __atomic_add_fetch(&calls[function], 1, __ATOMIC_SEQ_CST);
  int left = __atomic_load_n(&fails_after[function], __ATOMIC_SEQ_CST);
  if (left < 0) return 0;
  __atomic_store_n(&fails_after[function], left - 1, __ATOMIC_SEQ_CST);
  return left == 0 ? code_of_failure[function] : 0;
}

static void* work(void* argument) {
  Queue* queue = argument;
  for (;;) {
    pthread_mutex_lock(&queue->mutex);
    queue->busy = 0;
    pthread_cond_broadcast(&queue->changed);
    while (queue->first == NULL || queue->held) pthread_cond_wait(&queue->changed, &queue->mutex);
    Operation* operation = queue->first;
    queue->first = operation->next;
    if (queue->first == NULL) queue->last = &queue->first;
    queue->busy = 1;
    int broken = queue->broken;
    pthread_mutex_unlock(&queue->mutex);
    int delay = __atomic_load_n(&delay_in_microseconds, __ATOMIC_SEQ_CST);
    if (delay) usleep(delay);
    if (!broken) {
      if (operation->function != NULL) operation->function(operation->argument);
      else memcpy(operation->to, operation->bytes, operation->size);
    }
    free(operation->bytes);
    free(operation);
  }
  return NULL;
}

static pthread_once_t started = PTHREAD_ONCE_INIT;
static void start(void) {
  for (int i = 0; i < 8; ++i) fails_after[i] = -1;
  for (int i = 0; i < STREAMS; ++i) {
    Queue* queue = &queues[i];
    pthread_mutex_init(&queue->mutex, NULL);
    pthread_cond_init(&queue->changed, NULL);
    queue->last = &queue->first;
    pthread_t thread;
    pthread_create(&thread, NULL, work, queue);
  }
}

static void enqueue(Queue* queue, Operation* operation) {
  pthread_mutex_lock(&queue->mutex);
  *queue->last = operation, queue->last = &operation->next;
  pthread_cond_broadcast(&queue->changed);
  pthread_mutex_unlock(&queue->mutex);
}

/* The driver ------------------------------------------------------------------------------------------------------- */

EXPORTED int cuGetErrorName(int code, const char** name) {
  *name = code == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : code == ILLEGAL_ADDRESS ? "CUDA_ERROR_ILLEGAL_ADDRESS" : NULL;
  return *name == NULL;
}

EXPORTED int cuStreamGetCtx(void* stream, void** context) {
  *context = stream;
  return fails(CONTEXT);
}

EXPORTED int cuCtxPushCurrent_v2(void* context) {
  (void)context;
  int code = fails(PUSH);
  if (!code) ++depth;
  return code;
}

EXPORTED int cuCtxPopCurrent_v2(void** context) {
  *context = NULL;
  --depth;
  return fails(POP);
}

EXPORTED int cuMemHostAlloc(void** memory, size_t size, unsigned flags) {
  if (flags != 1 || depth == 0) return 201;
  int code = fails(ALLOCATE);
  if (code || posix_memalign(memory, 4096, size)) return code ? code : 2;
  memset(*memory, 0xee, size);
  return 0;
}

EXPORTED int cuMemcpyDtoHAsync_v2(void* to, unsigned long long from, size_t size, void* stream) {
  Queue* queue = stream;
  int code = depth == 0 ? 201 : fails(COPY);
  if (code) return code;
  Operation* operation = calloc(1, sizeof(Operation));
  operation->to = to, operation->size = size, operation->bytes = malloc(size);
  memcpy(operation->bytes, (void*)(uintptr_t)from, size);
  enqueue(queue, operation);
  return 0;
}

EXPORTED int cuLaunchHostFunc(void* stream, void (*function)(void*), void* argument) {
  int code = depth == 0 ? 201 : fails(CALL);
  if (code) return code;
  Operation* operation = calloc(1, sizeof(Operation));
  operation->function = function, operation->argument = argument;
  enqueue(stream, operation);
  return 0;
}

EXPORTED int cuStreamSynchronize(void* stream) {
  Queue* queue = stream;
  int code = fails(WAIT);
  pthread_mutex_lock(&queue->mutex);
  while (queue->first != NULL || queue->busy) pthread_cond_wait(&queue->changed, &queue->mutex);
  if (queue->broken) code = ILLEGAL_ADDRESS;
  pthread_mutex_unlock(&queue->mutex);
  return code;
}

/* What the test says ----------------------------------------------------------------------------------------------- */

/* The function fails once, after so many calls that do not. */
EXPORTED void stand_in_fail(int function, int after, int code) {
  code_of_failure[function] = code;
  __atomic_store_n(&fails_after[function], after, __ATOMIC_SEQ_CST);
}

EXPORTED void stand_in_delay(int microseconds) {
  __atomic_store_n(&delay_in_microseconds, microseconds, __ATOMIC_SEQ_CST);
}

EXPORTED int64_t stand_in_calls(int function) { return __atomic_load_n(&calls[function], __ATOMIC_SEQ_CST); }

/* Let a stream do nothing, until it may again. */
EXPORTED void stand_in_hold(int stream, int held) {
  pthread_once(&started, start);
  Queue* queue = &queues[stream];
  pthread_mutex_lock(&queue->mutex);
  queue->held = held;
  pthread_cond_broadcast(&queue->changed);
  pthread_mutex_unlock(&queue->mutex);
}

EXPORTED void stand_in_break(int stream) {
  pthread_once(&started, start);
  pthread_mutex_lock(&queues[stream].mutex);
  queues[stream].broken = 1;
  pthread_mutex_unlock(&queues[stream].mutex);
}

EXPORTED void stand_in_wait(int stream) {
  pthread_once(&started, start);
  cuStreamSynchronize(&queues[stream]);
}

/* How many contexts the handlers of this thread have left on their stack. */
EXPORTED int64_t stand_in_depth(void) { return __atomic_load_n(&most_depth_left, __ATOMIC_SEQ_CST); }

/* The handler: that of CUDA, for a runtime without streams ---------------------------------------------------------- */

static XLA_FFI_Handler* tap;
static int streams_a_device = 1;
static XLA_FFI_DeviceOrdinal_Get* ordinal_of;
static __thread int turn;

EXPORTED void stand_in_for(XLA_FFI_Handler* handler, int streams) {
  pthread_once(&started, start);
  tap = handler, streams_a_device = streams;
}

static XLA_FFI_Error* stream_get(XLA_FFI_Stream_Get_Args* args) {
  XLA_FFI_DeviceOrdinal_Get_Args device = {XLA_FFI_DeviceOrdinal_Get_Args_STRUCT_SIZE, NULL, args->ctx, 0};
  XLA_FFI_Error* error = __atomic_load_n(&ordinal_of, __ATOMIC_SEQ_CST)(&device);
  args->stream = &queues[(device.device_ordinal * streams_a_device + turn++ % streams_a_device) % STREAMS];
  return error;
}

EXPORTED XLA_FFI_Error* stand_in_tap(XLA_FFI_CallFrame* frame) {
  /* Newer runtimes have more functions than the header says. */
  char room[4096];
  size_t size = frame->api->struct_size;
  if (size > sizeof room) abort();
  memcpy(room, frame->api, size);
  XLA_FFI_Api* api = (XLA_FFI_Api*)room;
  api->XLA_FFI_Stream_Get = stream_get;
  __atomic_store_n(&ordinal_of, frame->api->XLA_FFI_DeviceOrdinal_Get, __ATOMIC_SEQ_CST);
  const XLA_FFI_Api* own = frame->api;
  int before = depth;
  frame->api = api;
  XLA_FFI_Error* error = tap(frame);
  frame->api = own;
  if (depth > before) __atomic_store_n(&most_depth_left, depth - before, __ATOMIC_SEQ_CST);
  return error;
}

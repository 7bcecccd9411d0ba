/* The hand-over of tapped values without the interpreter lock: the rings, and the handler for CPUs. There is no Python in
 * this file.
 *
 * `hostcb_tap` is a handler of XLA's typed FFI. It copies the operands of a tap into a ring, one for each device. Python
 * reads the ring: see `_runtime/queue/rings.py`. A call site that Python has not bound to a ring yet, and every tap that the ring does
 * not take, goes to the runtime's own handler of Python callbacks, which gets the very same call frame.
 *
 * A position counts all bytes that were ever written to a ring. It only grows, so that a step that is done twice does no
 * harm: Python may be interrupted between any two steps.
 */

#include "handover.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* So many handlers in Python of a program have targets of their own. */
#define MOST_NUMBERED 512
/* At least a page of the system. */
#define PAGE 65536
/* A consumer that sleeps on is woken if so many bytes of large values wait. */
#define CACHED (1u << 20)
/* The site of a record without a value. */
#define FILLER UINT64_MAX
/* In place of an index: the operation has it as an attribute. */
#define ATTRIBUTE UINT64_MAX

/* What Python has to know of these numbers: `library.exported` reads each by its name. */
EXPORTED const uint64_t hostcb_alignment = ALIGNMENT;
EXPORTED const uint64_t hostcb_most_inside = MOST_INSIDE;
EXPORTED const uint64_t hostcb_cached = CACHED;

static XLA_FFI_Handler* python_handler;
/* Not 0 while all taps have to go through Python. */
static int32_t all_through_python;

/* The site for which the current thread runs the handler in Python, if it has no binding. */
static __thread Site* unbound;
static __thread int32_t unbound_ordinal;

/* The handler ------------------------------------------------------------------------------------------------------ */

/* One library serves runtimes with older and newer headers: it says that it needs the older of the two versions. */
static XLA_FFI_TypeId site_type = {0};

int answer_metadata_query(XLA_FFI_CallFrame* frame, int64_t type) {
  if (frame->extension_start == NULL || (int)frame->extension_start->type != XLA_FFI_Extension_Metadata) return 0;
  XLA_FFI_Metadata* metadata = ((XLA_FFI_Metadata_Extension*)frame->extension_start)->metadata;
  int runtimes = frame->api->api_version.minor_version;
  metadata->api_version.struct_size = XLA_FFI_Api_Version_STRUCT_SIZE;
  metadata->api_version.extension_start = NULL;
  metadata->api_version.major_version = XLA_FFI_API_MAJOR;
  metadata->api_version.minor_version = runtimes < XLA_FFI_API_MINOR ? runtimes : XLA_FFI_API_MINOR;
  metadata->traits = 0;
  metadata->state_type_id.type_id = type;
  return 1;
}

static void free_site(void* object) {
  Site* site = object;
  for (int i = 0; i < MOST_DEVICES; ++i) free(site->bindings[i]);
  free(site);
}

EXPORTED XLA_FFI_TypeId* hostcb_site_type(void) { return &site_type; }

static XLA_FFI_TypeInfo site_info = {XLA_FFI_TypeInfo_STRUCT_SIZE, NULL, free_site};
EXPORTED XLA_FFI_TypeInfo* hostcb_site_info(void) { return &site_info; }

XLA_FFI_Error* refusal(XLA_FFI_CallFrame* frame, XLA_FFI_Error_Code code, const char* text) {
  XLA_FFI_Error_Create_Args error = {XLA_FFI_Error_Create_Args_STRUCT_SIZE, NULL, text, code};
  return frame->api->XLA_FFI_Error_Create(&error);
}

XLA_FFI_Error* new_site(XLA_FFI_CallFrame* frame, XLA_FFI_TypeId* type) {
  if (answer_metadata_query(frame, type->type_id)) return NULL;
  Site* site = calloc(1, sizeof(Site));
  if (site == NULL)
    return refusal(frame, XLA_FFI_Error_Code_RESOURCE_EXHAUSTED, "hostcb: no memory for the call site of a tap");
  XLA_FFI_State_Set_Args set = {XLA_FFI_State_Set_Args_STRUCT_SIZE, NULL, frame->ctx,
                                XLA_FFI_ExecutionStage_INSTANTIATE, type, site};
  return frame->api->XLA_FFI_State_Set(&set);
}

EXPORTED XLA_FFI_Error* hostcb_instantiate(XLA_FFI_CallFrame* frame) { return new_site(frame, &site_type); }

/* Fill the ring up to the end of its memory; return how many bytes that takes. */
static uint64_t fill(Ring* ring) {
  uint64_t at = ring->counters.reserved % ring->capacity, left = ring->capacity - at;
  Record* filler = (Record*)(ring->data + at);
  filler->length = left, filler->blocks = 0, filler->site = FILLER, filler->bytes = 0, filler->on_its_way = NULL;
  return left;
}

static Block** blocks_of(Record* record) { return (Block**)((char*)record + aligned(sizeof(Record))); }

static uint64_t of_python(const uint64_t* field) { return __atomic_load_n(field, __ATOMIC_SEQ_CST); }

static int has_room(Ring* ring, uint64_t bytes) {
  Counters* c = &ring->counters;
  uint64_t held = c->bytes + ring->counters.bytes_on_their_way + of_python(&c->outside_bytes);
  uint64_t values = c->values + ring->counters.values_on_their_way + of_python(&c->outside_values);
  return values < of_python(&c->most_values) && (held == 0 || held + bytes <= of_python(&c->budget));
}

Record* reserve(const Binding* binding, int on_its_way) {
  Ring* ring = binding->ring;
  Counters* c = &ring->counters;
  if (!ring->attended || !has_room(ring, binding->bytes)) return NULL;
  uint64_t at = c->reserved % ring->capacity, left = ring->capacity - at;
  uint64_t skipped = binding->length <= left ? 0 : left;
  if (c->reserved - ring->counters.head + skipped + binding->length > ring->capacity) return NULL;
  if (skipped) fill(ring), at = 0;
  Record* record = (Record*)(ring->data + at);
  record->length = binding->length, record->site = binding->site, record->bytes = binding->bytes;
  record->blocks = binding->blocks;
  memset(blocks_of(record), 0, binding->blocks * sizeof(Block*));
  record->on_its_way = on_its_way ? ring : NULL;
  if (on_its_way) ring->counters.bytes_on_their_way += binding->bytes, ring->counters.values_on_their_way += 1;
  __atomic_store_n(&c->reserved, c->reserved + skipped + binding->length, __ATOMIC_RELEASE);
  return record;
}

/* Show Python all records before the first that is on its way; return whether there is one more. */
static int show(Ring* ring) {
  Counters* c = &ring->counters;
  uint64_t tail = c->tail;
  while (tail < c->reserved) {
    Record* record = (Record*)(ring->data + tail % ring->capacity);
    if (record->on_its_way != NULL) break;
    tail += record->length;
    if (record->site == FILLER) continue;
    c->bytes += record->bytes;
    c->values += 1;
    if (record->blocks) c->in_blocks += record->bytes;
    __atomic_store_n(&c->accepted_bytes, c->accepted_bytes + record->bytes, __ATOMIC_RELAXED);
    __atomic_store_n(&c->accepted, c->accepted + 1, __ATOMIC_RELAXED);
  }
  if (tail == c->tail) return 0;
  __atomic_store_n(&c->tail, tail, __ATOMIC_RELEASE);
  return 1;
}

/* Whether a consumer does not sleep on: the ring might be full before it wakes by itself, or the memory of large values
 * might leave the caches before it is used again. */
static int is_due(const Ring* ring) {
  const Counters* c = &ring->counters;
  /* What is on its way cannot run yet. */
  uint64_t held = c->bytes + of_python(&c->outside_bytes);
  return c->tail - c->head > ring->capacity / 2 || held > of_python(&c->budget) / 2 || c->in_blocks >= CACHED;
}

int arrived(Ring* ring, Record* record, int whole) {
  if (record->on_its_way != NULL) {
    ring->counters.bytes_on_their_way -= record->bytes, ring->counters.values_on_their_way -= 1;
    record->on_its_way = NULL;
  }
  if (!whole) record->site = FILLER, record->bytes = 0, record->blocks = 0;
  if (!show(ring)) return 0;
  int wake = ring->sleeping || (ring->lingering && is_due(ring));
  if (wake) ring->sleeping = ring->lingering = 0;
  return wake || ring->waiting;
}

/* With the ring's mutex: wait until all records up to a position are shown. A record before it may be on its way, in a
 * thread that needs nothing but the mutex to end. */
static void wait_until_shown(Ring* ring, uint64_t position) {
  while (ring->counters.tail < position) {
    ring->waiting += 1;
    pthread_cond_wait(&ring->woken, &ring->mutex);
    ring->waiting -= 1;
  }
}

/* The data of an operand. The first one is the token. */
static const char* data_of(const XLA_FFI_CallFrame* frame, int64_t operand) {
  return ((const XLA_FFI_Buffer*)frame->args.args[operand + 1])->data;
}

static int take_blocks(const Binding* binding, Record* record) {
  Block** next = blocks_of(record);
  for (int64_t i = 0; i < binding->count; ++i)
    if (binding->sizes[i] > MOST_INSIDE && (*next++ = take_block(binding->sizes[i])) == NULL) return 0;
  return 1;
}

static Block* give_blocks_back(Record* record, Block* list) {
  for (uint32_t i = 0; i < record->blocks; ++i) {
    Block* gone = give_block_back(blocks_of(record)[i]);
    if (gone == NULL) continue;
    Block** last = &gone->next;
    while (*last != NULL) last = &(*last)->next;
    *last = list, list = gone;
  }
  return list;
}

static void copy_operands(const Binding* binding, Record* record, const XLA_FFI_CallFrame* frame) {
  Block** block = blocks_of(record);
  char* to = (char*)block + aligned(binding->blocks * sizeof(Block*));
  for (int64_t i = 0; i < binding->count; ++i) {
    uint64_t size = binding->sizes[i];
    if (size > MOST_INSIDE) {
      copy((*block++)->data, data_of(frame, i), size);
    } else {
      memcpy(to, data_of(frame, i), size);
      to += aligned(size);
    }
  }
}

/* A large value is copied without the mutex, for which the consumer and other threads may wait. When this returns, Python
 * is shown the value: a call that comes next finds it. */
static int taken(Binding* binding, XLA_FFI_CallFrame* frame) {
  Ring* ring = binding->ring;
  int large = binding->blocks || binding->length > MOST_INSIDE, whole = 1, wake = 0;
  Block* gone = NULL;
  pthread_mutex_lock(&ring->mutex);
  Record* record = reserve(binding, large);
  if (record != NULL) {
    uint64_t end = ring->counters.reserved;
    if (large) {
      pthread_mutex_unlock(&ring->mutex);
      whole = take_blocks(binding, record);
      if (!whole) gone = give_blocks_back(record, NULL);
    }
    if (whole) copy_operands(binding, record, frame);
    if (large) pthread_mutex_lock(&ring->mutex);
    wake = arrived(ring, record, whole);
    wait_until_shown(ring, end);
  }
  pthread_mutex_unlock(&ring->mutex);
  if (wake) pthread_cond_broadcast(&ring->woken);
  unmap_blocks(gone);
  return record != NULL && whole;
}

XLA_FFI_Error* through_python(XLA_FFI_Handler* handler, XLA_FFI_CallFrame* frame, const Call* call) {
  /* A signal handler or a finalizer in the middle of a handler may run another program. */
  Site* outer = unbound;
  int32_t outer_ordinal = unbound_ordinal;
  unbound = call->binding == NULL ? call->site : NULL, unbound_ordinal = call->ordinal;
  XLA_FFI_Error* error = handler(frame);
  unbound = outer, unbound_ordinal = outer_ordinal;
  return error;
}

XLA_FFI_Error* called(XLA_FFI_CallFrame* frame, XLA_FFI_TypeId* type, Call* call) {
  XLA_FFI_State_Get_Args got = {XLA_FFI_State_Get_Args_STRUCT_SIZE, NULL, frame->ctx,
                                XLA_FFI_ExecutionStage_INSTANTIATE, type, NULL};
  XLA_FFI_Error* error = frame->api->XLA_FFI_State_Get(&got);
  if (error != NULL) return error;
  XLA_FFI_DeviceOrdinal_Get_Args device = {XLA_FFI_DeviceOrdinal_Get_Args_STRUCT_SIZE, NULL, frame->ctx, 0};
  error = frame->api->XLA_FFI_DeviceOrdinal_Get(&device);
  if (error != NULL) return error;
  int32_t ordinal = device.device_ordinal;
  int known = ordinal >= 0 && ordinal < MOST_DEVICES;
  call->ordinal = ordinal;
  call->site = known ? got.state : NULL;
  call->binding = known ? __atomic_load_n(&call->site->bindings[ordinal], __ATOMIC_ACQUIRE) : NULL;
  return NULL;
}

int goes_by_ring(const Binding* binding, const XLA_FFI_CallFrame* frame) {
  return binding != NULL && !__atomic_load_n(&all_through_python, __ATOMIC_SEQ_CST) &&
         !__atomic_load_n(binding->through_python, __ATOMIC_SEQ_CST) && frame->args.size == binding->count + 1;
}

/* Pass a call to the handler in Python, which reads the index from an attribute that the operation has not. */
static XLA_FFI_Error* with_index(XLA_FFI_CallFrame* frame, uint64_t index, const Call* call) {
  XLA_FFI_Attrs attributes = frame->attrs;
  XLA_FFI_AttrType type = XLA_FFI_AttrType_SCALAR;
  XLA_FFI_ByteSpan name = {"index", 5}, *names = &name;
  XLA_FFI_Scalar scalar = {XLA_FFI_DataType_U64, &index};
  void* values = &scalar;
  /* The frame is this call's alone. */
  frame->attrs.size = 1, frame->attrs.types = &type, frame->attrs.names = &names, frame->attrs.attrs = &values;
  XLA_FFI_Error* error = through_python(python_handler, frame, call);
  frame->attrs = attributes;
  return error;
}

static XLA_FFI_Error* tap(XLA_FFI_CallFrame* frame, uint64_t index) {
  if (answer_metadata_query(frame, site_type.type_id)) return NULL;
  Call call;
  XLA_FFI_Error* error = called(frame, &site_type, &call);
  if (error != NULL) return error;
  if (goes_by_ring(call.binding, frame) && taken(call.binding, frame)) return NULL;
  return index == ATTRIBUTE ? through_python(python_handler, frame, &call) : with_index(frame, index, &call);
}

/* XLA's compiler makes an MLIR context to read the attributes of an operation, which is a quarter of its time for a tap.
 * So the operation has none: its target tells to which of the program's handlers in Python it belongs. Only after the
 * first MOST_NUMBERED an attribute does. */
EXPORTED XLA_FFI_Error* hostcb_tap(XLA_FFI_CallFrame* frame) { return tap(frame, ATTRIBUTE); }

#define WITH_LAST(ROW, a, b)                                                                                       \
  ROW(a, b, 0) ROW(a, b, 1) ROW(a, b, 2) ROW(a, b, 3) ROW(a, b, 4) ROW(a, b, 5) ROW(a, b, 6) ROW(a, b, 7)          \
  ROW(a, b, 8) ROW(a, b, 9) ROW(a, b, A) ROW(a, b, B) ROW(a, b, C) ROW(a, b, D) ROW(a, b, E) ROW(a, b, F)
#define WITH_SECOND(ROW, a)                                                                                        \
  WITH_LAST(ROW, a, 0) WITH_LAST(ROW, a, 1) WITH_LAST(ROW, a, 2) WITH_LAST(ROW, a, 3) WITH_LAST(ROW, a, 4)         \
  WITH_LAST(ROW, a, 5) WITH_LAST(ROW, a, 6) WITH_LAST(ROW, a, 7) WITH_LAST(ROW, a, 8) WITH_LAST(ROW, a, 9)         \
  WITH_LAST(ROW, a, A) WITH_LAST(ROW, a, B) WITH_LAST(ROW, a, C) WITH_LAST(ROW, a, D) WITH_LAST(ROW, a, E)         \
  WITH_LAST(ROW, a, F)
#define FOR_EACH_NUMBER(ROW) WITH_SECOND(ROW, 0) WITH_SECOND(ROW, 1)

#define DEFINED(a, b, c) \
  static XLA_FFI_Error* tap_##a##b##c(XLA_FFI_CallFrame* frame) { return tap(frame, 0x##a##b##c); }
#define NAMED(a, b, c) tap_##a##b##c,

FOR_EACH_NUMBER(DEFINED)
static XLA_FFI_Handler* const numbered[MOST_NUMBERED] = {FOR_EACH_NUMBER(NAMED)};

/* The handler of taps whose handler in Python is the program's `index`th. NULL if it has none of its own. */
EXPORTED XLA_FFI_Handler* hostcb_numbered_tap(uint64_t index) {
  return index < MOST_NUMBERED ? numbered[index] : NULL;
}

/* What Python calls: short functions, which may keep the interpreter lock, since no thread waits for it while it holds
 * a ring's mutex --------------------------------------------------------------------------------------------------- */

/* The version of hostcb and the hash of the sources: `library` refuses a library that was built from another one. */
EXPORTED const char* hostcb_build(void) { return HOSTCB_BUILD; }

/* Whether the current thread runs a Python handler for a call site that has no binding. */
EXPORTED int hostcb_is_unbound(void) { return unbound != NULL; }

EXPORTED void hostcb_set_python_handler(XLA_FFI_Handler* handler) { python_handler = handler; }

EXPORTED void hostcb_all_through_python(int32_t yes) {
  __atomic_store_n(&all_through_python, yes, __ATOMIC_SEQ_CST);
}

static int make_condition(pthread_cond_t* condition) {
#ifdef __APPLE__
  return pthread_cond_init(condition, NULL);
#else
  pthread_condattr_t attributes;
  int failed = pthread_condattr_init(&attributes);
  failed = failed || pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  failed = failed || pthread_cond_init(condition, &attributes);
  pthread_condattr_destroy(&attributes);
  return failed;
#endif
}

Ring* ring_of(void* data, uint64_t capacity) {
  Ring* ring = calloc(1, sizeof(Ring));
  if (ring == NULL) return NULL;
  if (pthread_mutex_init(&ring->mutex, NULL) || make_condition(&ring->woken)) {
    free(ring);
    return NULL;
  }
  ring->data = data, ring->capacity = capacity;
  return ring;
}

/* Return a ring, which lives for ever: executables may be bound to it. NULL if there is no memory. */
EXPORTED Ring* hostcb_ring(uint64_t capacity, void** data) {
  if (posix_memalign(data, PAGE, capacity)) return NULL;
  Ring* ring = ring_of(*data, capacity);
  if (ring == NULL) free(*data);
  return ring;
}

/* Bind the call site for which the current thread runs a Python handler to a ring; only the first time counts. Return
 * whether there is such a site. */
EXPORTED int hostcb_bind(Ring* ring, uint64_t site, const int32_t* through_python, uint64_t bytes, int64_t count,
                         const uint64_t* sizes) {
  Site* called = unbound;
  if (called == NULL) return 0;
  unbound = NULL;
  Binding* binding = malloc(sizeof(Binding) + count * sizeof(uint64_t));
  if (binding == NULL) return 0;
  binding->ring = ring, binding->site = site, binding->through_python = through_python, binding->count = count;
  binding->bytes = bytes, binding->length = aligned(sizeof(Record)), binding->blocks = 0;
  for (int64_t i = 0; i < count; ++i) {
    binding->sizes[i] = sizes[i];
    if (sizes[i] > MOST_INSIDE)
      binding->blocks += 1;
    else
      binding->length += aligned(sizes[i]);
  }
  binding->length += aligned(binding->blocks * sizeof(Block*));
  Binding* none = NULL;
  if (!__atomic_compare_exchange_n(&called->bindings[unbound_ordinal], &none, binding, 0, __ATOMIC_ACQ_REL,
                                   __ATOMIC_ACQUIRE)) {
    free(binding);
    return 0;
  }
  return 1;
}

/* Say whether there is a consumer. When this returns after a 0, the ring takes no more values, and those that it took on a
 * CPU are shown. */
EXPORTED void hostcb_attend(Ring* ring, int attended) {
  pthread_mutex_lock(&ring->mutex);
  ring->attended = attended;
  if (!attended) wait_until_shown(ring, ring->counters.reserved);
  pthread_mutex_unlock(&ring->mutex);
}

/* Write site, begin of the operands in the ring's memory, and end position of at most `most` records after a position;
 * return how many. After the last one comes the position up to which was read.
 *
 * Records that were given back are left out: their memory may hold others by now. So it does no harm if other threads give
 * back records after the caller has looked up the position. */
EXPORTED int64_t hostcb_read(Ring* ring, uint64_t position, uint64_t* out, int64_t most) {
  pthread_mutex_lock(&ring->mutex);
  uint64_t tail = ring->counters.tail;
  int64_t count = 0;
  if (position < ring->counters.head) position = ring->counters.head;
  while (position < tail && count < most) {
    uint64_t at = position % ring->capacity;
    Record* record = (Record*)(ring->data + at);
    position += record->length;
    if (record->site == FILLER) continue;
    out[3 * count] = record->site;
    out[3 * count + 1] = at + aligned(sizeof(Record));
    out[3 * count + 2] = position;
    ++count;
  }
  pthread_mutex_unlock(&ring->mutex);
  out[3 * count] = position;
  return count;
}

/* Let an owner refer to a block of the record with these operands and this end. Return 0 if the record was given back: its
 * memory may hold others by now. */
EXPORTED int hostcb_share(Ring* ring, uint64_t operands, uint64_t end, uint64_t index, Owner* owner) {
  pthread_mutex_lock(&ring->mutex);
  int there = ring->counters.head < end;
  if (there) {
    Block* block = ((Block**)(ring->data + operands))[index];
    share_block(block);
    owner->data = block->data;
    owner->block = block;
  }
  pthread_mutex_unlock(&ring->mutex);
  return there;
}

/* The functions of all records up to a position have ended: count them, and give their memory back. This is the one
 * place that knows how far they are, so it does no harm to say it again, or late. */
EXPORTED void hostcb_done(Ring* ring, uint64_t position) {
  Block* gone = NULL;
  pthread_mutex_lock(&ring->mutex);
  while (ring->counters.head < position) {
    Record* record = (Record*)(ring->data + ring->counters.head % ring->capacity);
    if (record->site != FILLER) {
      ring->counters.values -= 1;
      __atomic_store_n(&ring->counters.ended_bytes, ring->counters.ended_bytes + record->bytes, __ATOMIC_RELAXED);
      __atomic_store_n(&ring->counters.ended, ring->counters.ended + 1, __ATOMIC_RELAXED);
    }
    ring->counters.bytes -= record->bytes;
    if (record->blocks) {
      ring->counters.in_blocks -= record->bytes;
      gone = give_blocks_back(record, gone);
    }
    ring->counters.head += record->length;
  }
  if (ring->counters.head == ring->counters.reserved && ring->counters.head % ring->capacity) {
    /* The next value comes to the begin of the memory, which is the part that is mapped and in the caches. */
    ring->counters.head += fill(ring);
    __atomic_store_n(&ring->counters.reserved, ring->counters.head, __ATOMIC_RELEASE);
    __atomic_store_n(&ring->counters.tail, ring->counters.head, __ATOMIC_RELEASE);
  }
  pthread_mutex_unlock(&ring->mutex);
  unmap_blocks(gone);
}

/* Give the memory of an empty ring back to the system, unless a device writes to it, and that of all ready blocks. */
EXPORTED void hostcb_trim(Ring* ring) {
  unmap_ready_blocks();
  pthread_mutex_lock(&ring->mutex);
  if (ring->counters.head == ring->counters.reserved && ring->counters.head % ring->capacity == 0)
    madvise(ring->data, ring->capacity, MADV_DONTNEED);
  pthread_mutex_unlock(&ring->mutex);
}

EXPORTED void hostcb_wake(Ring* ring) {
  pthread_mutex_lock(&ring->mutex);
  ring->bells += 1;
  pthread_mutex_unlock(&ring->mutex);
  pthread_cond_broadcast(&ring->woken);
}

/* In a forked child: the values are the parent's, and a thread of the parent may have held the mutex. */
EXPORTED void hostcb_forked(Ring* ring) {
  pthread_mutex_init(&ring->mutex, NULL);
  make_condition(&ring->woken);
  for (Record* record; ring->counters.head < ring->counters.reserved; ring->counters.head += record->length) {
    record = (Record*)(ring->data + ring->counters.head % ring->capacity);
    unmap_blocks(give_blocks_back(record, NULL));
  }
  ring->counters.tail = ring->counters.reserved;
  ring->counters.ended = ring->counters.accepted, ring->counters.ended_bytes = ring->counters.accepted_bytes;
  ring->counters.bytes = ring->counters.values = ring->counters.in_blocks = 0;
  ring->counters.bytes_on_their_way = ring->counters.values_on_their_way = 0;
  ring->attended = ring->sleeping = ring->lingering = ring->waiting = 0;
}

static pthread_t exiting;

/* The terminate handler of C++, which may not return. */
static void stay(void) {
  if (pthread_equal(pthread_self(), exiting)) abort();
  for (;;) pause();
}

/* Let a thread that C++ terminates stay where it is, but not this one; `set_terminate` is C++'s function of that name. */
EXPORTED void hostcb_hold_ended_threads(void (*set_terminate(void (*)(void)))(void)) {
  exiting = pthread_self();
  set_terminate(stay);
}

/* What Python calls without the interpreter lock -------------------------------------------------------------------- */

/* Return when all values are shown that were on their way. */
EXPORTED void hostcb_settle(Ring* ring) {
  pthread_mutex_lock(&ring->mutex);
  wait_until_shown(ring, ring->counters.reserved);
  pthread_mutex_unlock(&ring->mutex);
}

/* Return how often the bell has rung: as soon as that is more than `heard`, or after so many microseconds or when `is_due`
 * says so, or, if they are negative, when there is a record whose function has not ended. */
EXPORTED uint64_t hostcb_sleep(Ring* ring, uint64_t heard, int64_t microseconds) {
  struct timespec end;
#ifdef __APPLE__
  clock_gettime(CLOCK_REALTIME, &end);
#else
  clock_gettime(CLOCK_MONOTONIC, &end);
#endif
  if (microseconds > 0) {
    end.tv_sec += microseconds / 1000000;
    end.tv_nsec += microseconds % 1000000 * 1000;
    end.tv_sec += end.tv_nsec / 1000000000;
    end.tv_nsec %= 1000000000;
  }
  pthread_mutex_lock(&ring->mutex);
  while (ring->bells == heard) {
    if (microseconds >= 0) {
      if (is_due(ring)) break;
      ring->lingering = 1;
      if (pthread_cond_timedwait(&ring->woken, &ring->mutex, &end) == ETIMEDOUT) break;
    } else {
      if (ring->counters.tail > ring->counters.head) break;
      ring->sleeping = 1;
      pthread_cond_wait(&ring->woken, &ring->mutex);
    }
  }
  uint64_t rung = ring->bells;
  pthread_mutex_unlock(&ring->mutex);
  return rung;
}

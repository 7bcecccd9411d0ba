/* What the files share: the handler of taps and the rings are in handover.c, the memory of large operands in blocks.c, and
 * copies in copying.c. */

#ifndef HOSTCB_HANDOVER_H_
#define HOSTCB_HANDOVER_H_

#include <pthread.h>
#include <stdint.h>

#include "xla/ffi/api/c_api.h"

#define EXPORTED __attribute__((visibility("default")))

/* A site is bound for each of so many devices; the devices after these go to Python. */
#define MOST_DEVICES 64
/* A larger operand is in a block, and a record of more bytes is written without the ring's mutex. */
#define MOST_INSIDE (1u << 16)
/* The place of each operand in a record. Rings are aligned to it. */
#define ALIGNMENT 32

static inline uint64_t aligned(uint64_t bytes) { return (bytes + ALIGNMENT - 1) & ~(uint64_t)(ALIGNMENT - 1); }

/* What Python reads and writes as fields; `rings.Counters` has the same fields. Python writes those of the second group.
 */
typedef struct {
  uint64_t tail;     /* the end of the newest record that Python may read */
  uint64_t accepted; /* how many values Python was ever shown */
  uint64_t bytes;    /* of the values that have not run, of those that it was shown */
  uint64_t values;   /* that have not run, of those that it was shown */
  uint64_t reserved; /* the end of the newest record, whose value may be on its way */
  uint64_t in_blocks; /* bytes of the values with blocks that have not run, of those that it was shown */
  uint64_t bytes_on_their_way;  /* of the records that it was not shown yet */
  uint64_t values_on_their_way; /* how many they are */
  uint64_t accepted_bytes; /* of all values that Python was ever shown */
  uint64_t head;           /* the end of the newest record whose function has ended */
  uint64_t ended;          /* how many functions have ever ended */
  uint64_t ended_bytes;    /* of the values whose functions have ever ended */

  uint64_t budget;         /* the most bytes of all values of the device */
  uint64_t most_values;    /* the most values of the device */
  uint64_t outside_bytes;  /* of values that Python has queued by itself */
  uint64_t outside_values; /* that Python has queued by itself */
} Counters;

typedef struct {
  Counters counters; /* first, see above */
  pthread_mutex_t mutex;
  pthread_cond_t woken;
  char* data;
  uint64_t capacity;
  uint64_t bells; /* how often Python has rung for the consumer */
  int attended;   /* whether there is a consumer that sleeps in `hostcb_sleep` */
  int sleeping;   /* whether a value has to wake it */
  int lingering;  /* whether a value that makes the ring half full, or is large, has to wake it */
  int waiting;    /* how many threads wait until a record is shown that is on its way */
} Ring;

/* The memory of one large operand. */
typedef struct Block {
  struct Block* next; /* in a list */
  uint64_t size;
  uint64_t references;
  uint64_t forks; /* those before the process that has taken it */
  char* data;
} Block;

/* What Python's arrays over a block refer to; `owners.Owner` has the same fields. */
typedef struct {
  Block* block;
  char* data;
} Owner;

/* Every record begins with this. After it come pointers to the blocks of the large operands, and then the other operands;
 * the first pointer and each of these operands are aligned. */
typedef struct {
  uint32_t length; /* of the whole record */
  uint32_t blocks; /* how many */
  uint64_t site;
  uint64_t bytes;   /* of the operands */
  Ring* on_its_way; /* the ring, until the operands are there; then NULL */
} Record;

/* A call site on one device. */
typedef struct {
  Ring* ring;
  uint64_t site;
  const int32_t* through_python; /* not 0 if taps of this program have to go through Python */
  uint64_t bytes; /* what the queue counts: of the values' arrays, which may be smaller than what crosses */
  uint32_t length, blocks;
  int64_t count;
  uint64_t sizes[];
} Binding;

/* A call site of an executable. The runtime makes it with the executable, and frees it with it. */
typedef struct {
  Binding* bindings[MOST_DEVICES];
} Site;

/* One call of a handler. The site is NULL if no binding is made for the device. */
typedef struct {
  Site* site;
  int32_t ordinal;
  Binding* binding;
} Call;

/* Whether the runtime only asks what it needs of the handler; this answers. */
int answer_metadata_query(XLA_FFI_CallFrame* frame, int64_t type);

/* Make the call site of an executable, the state of its handler. */
XLA_FFI_Error* new_site(XLA_FFI_CallFrame* frame, XLA_FFI_TypeId* type);

XLA_FFI_Error* refusal(XLA_FFI_CallFrame* frame, XLA_FFI_Error_Code code, const char* text);

/* Find the call site, the device and the binding. */
XLA_FFI_Error* called(XLA_FFI_CallFrame* frame, XLA_FFI_TypeId* type, Call* call);

/* Whether a value may go by the ring of a binding, which may be NULL. */
int goes_by_ring(const Binding* binding, const XLA_FFI_CallFrame* frame);

/* Pass the frame on to a handler in Python, in which Python may bind the site. */
XLA_FFI_Error* through_python(XLA_FFI_Handler* handler, XLA_FFI_CallFrame* frame, const Call* call);

/* A ring on memory that begins with a multiple of ALIGNMENT; NULL if there is no memory. */
Ring* ring_of(void* data, uint64_t capacity);

/* With the ring's mutex: a new record in one piece, NULL if there is no room. */
Record* reserve(const Binding* binding, int on_its_way);

/* With the ring's mutex: the operands of a record are there, or, if it is not `whole`, will never be. Return whether to
 * wake the consumer. */
int arrived(Ring* ring, Record* record, int whole);

/* As `memcpy`; large operands past the caches. */
void copy(char* to, const char* from, uint64_t bytes);

/* A block for so many bytes, with one reference; NULL if there is no memory. */
Block* take_block(uint64_t bytes);

/* One reference more. */
void share_block(Block* block);

/* One reference less. Return a list of blocks to unmap when no mutex is held. The block may be NULL. */
Block* give_block_back(Block* block);

void unmap_blocks(Block* list);

void unmap_ready_blocks(void);

#endif

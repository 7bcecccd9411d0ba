/* The memory of large operands, which is used again: fresh memory, mapped page by page, costs more than the copy. There is
 * no Python in this file.
 *
 * A record of the ring and each owner in Python hold a reference to a block. The one that gives the last reference back puts
 * the block among the ready ones, or unmaps it if it came back too long ago.
 *
 * A fork waits for the mutex. So the list of ready blocks is whole in the child, where the other threads are gone. The blocks
 * that the parent's arrays held count in the child only when they come back: threads that are gone never give theirs.
 */

#include "handover.h"

#include <stdlib.h>
#include <sys/mman.h>

/* Blocks of sizes that differ by less are of one size. */
#define STEP 16384
/* From so many bytes on in large pages. */
#define LEAST_IN_LARGE_PAGES (4u << 20)
/* The limit for ready blocks: those that came back last. */
#define MOST_READY (64u << 20)

EXPORTED const uint64_t hostcb_least_in_large_pages = LEAST_IN_LARGE_PAGES;
EXPORTED const uint64_t hostcb_most_ready = MOST_READY;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static Block* ready;
static uint64_t ready_bytes;
/* Of all blocks that are mapped, without those that only the parent of this process has taken. */
static uint64_t mapped_bytes;
/* How many forks lead to this process. */
static uint64_t forks;

static void lock(void) { pthread_mutex_lock(&mutex); }

static void unlock(void) { pthread_mutex_unlock(&mutex); }

static void forked(void) {
  forks += 1;
  mapped_bytes = ready_bytes;
  unlock();
}

/* In the child, an array may end and give its block back before any function of hostcb's runs there. */
static void hold_at_forks(void) { pthread_atfork(lock, unlock, forked); }

static Block* map(uint64_t size) {
  Block* block = malloc(sizeof(Block));
  if (block == NULL) return NULL;
  void* data = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    free(block);
    return NULL;
  }
#ifdef MADV_HUGEPAGE
  /* A kernel without large pages refuses, which is harmless. */
  if (size >= LEAST_IN_LARGE_PAGES) madvise(data, size, MADV_HUGEPAGE);
#endif
  block->next = NULL, block->size = size, block->references = 1, block->data = data, block->forks = forks;
  __atomic_fetch_add(&mapped_bytes, size, __ATOMIC_RELAXED);
  return block;
}

Block* take_block(uint64_t bytes) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, hold_at_forks);
  uint64_t size = (bytes + STEP - 1) / STEP * STEP;
  pthread_mutex_lock(&mutex);
  Block** link = &ready;
  while (*link != NULL && (*link)->size != size) link = &(*link)->next;
  Block* block = *link;
  if (block != NULL) {
    *link = block->next;
    ready_bytes -= size;
  }
  pthread_mutex_unlock(&mutex);
  if (block == NULL) return map(size);
  block->next = NULL, block->references = 1, block->forks = forks;
  return block;
}

void share_block(Block* block) { __atomic_fetch_add(&block->references, 1, __ATOMIC_RELAXED); }

/* Take all ready blocks off the list, except those that came back last and are of so many bytes together. */
static Block* all_but(uint64_t bytes) {
  uint64_t kept = 0;
  Block** link = &ready;
  while (*link != NULL && kept + (*link)->size <= bytes) kept += (*link)->size, link = &(*link)->next;
  Block* rest = *link;
  *link = NULL;
  ready_bytes = kept;
  return rest;
}

Block* give_block_back(Block* block) {
  if (block == NULL || __atomic_sub_fetch(&block->references, 1, __ATOMIC_ACQ_REL) != 0) return NULL;
  block->next = NULL;
  if (block->forks != forks) {
    block->forks = forks;
    __atomic_fetch_add(&mapped_bytes, block->size, __ATOMIC_RELAXED);
  }
  if (block->size > MOST_READY) return block;
  pthread_mutex_lock(&mutex);
  block->next = ready;
  ready = block;
  ready_bytes += block->size;
  Block* rest = ready_bytes > MOST_READY ? all_but(MOST_READY) : NULL;
  pthread_mutex_unlock(&mutex);
  return rest;
}

void unmap_blocks(Block* block) {
  while (block != NULL) {
    Block* next = block->next;
    __atomic_fetch_sub(&mapped_bytes, block->size, __ATOMIC_RELAXED);
    munmap(block->data, block->size);
    free(block);
    block = next;
  }
}

void unmap_ready_blocks(void) {
  pthread_mutex_lock(&mutex);
  Block* rest = all_but(0);
  pthread_mutex_unlock(&mutex);
  unmap_blocks(rest);
}

/* What Python calls ------------------------------------------------------------------------------------------------ */

/* Give an owner a block of its own; return whether there is memory. */
EXPORTED int hostcb_own(Owner* owner, uint64_t bytes) {
  Block* block = take_block(bytes);
  if (block == NULL) return 0;
  owner->data = block->data;
  owner->block = block;
  return 1;
}

/* An owner has ended. */
EXPORTED void hostcb_release(Owner* owner) {
  Block* block = owner->block;
  owner->block = NULL;
  unmap_blocks(give_block_back(block));
}

/* The bytes of all blocks, and of those that are ready; in a forked child without those that its parent's arrays hold. */
EXPORTED uint64_t hostcb_mapped(uint64_t* of_ready) {
  pthread_mutex_lock(&mutex);
  *of_ready = ready_bytes;
  pthread_mutex_unlock(&mutex);
  return __atomic_load_n(&mapped_bytes, __ATOMIC_RELAXED);
}

/* Copies of large values past the caches. There is no Python in this file.
 *
 * A usual store first reads the memory that it writes to. These do not, which saves a third of the traffic.
 */

#include "handover.h"

#include <string.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

/* Below that, copies past the caches take longer, and so does what reads them. */
#define LEAST_PAST_CACHES (4u << 20)

#if defined(__SSE2__)
#define LINE 64
#define LINES 4
#define PAGE 4096
#define PAGES 4

/* Copy whole groups of pages, a few lines of each page in turn, so that several of the memory's rows are open at once.
 * `to` is aligned to 16 bytes. */
static void stream_pages(char* to, const char* from, uint64_t bytes) {
  for (uint64_t group = 0; group < bytes; group += PAGES * PAGE)
    for (uint64_t line = 0; line < PAGE; line += LINES * LINE)
      for (uint64_t page = 0; page < PAGES; ++page)
        for (uint64_t i = 0; i < LINES; ++i) {
          uint64_t at = group + page * PAGE + line + i * LINE;
          const __m128i* source = (const __m128i*)(from + at);
          __m128i* target = (__m128i*)(to + at);
          _mm_prefetch(from + at + LINES * LINE, _MM_HINT_T0);
          __m128i a = _mm_loadu_si128(source), b = _mm_loadu_si128(source + 1);
          __m128i c = _mm_loadu_si128(source + 2), d = _mm_loadu_si128(source + 3);
          _mm_stream_si128(target, a), _mm_stream_si128(target + 1, b);
          _mm_stream_si128(target + 2, c), _mm_stream_si128(target + 3, d);
        }
  /* Other threads see these stores before those that follow. */
  _mm_sfence();
}

static void stream(char* to, const char* from, uint64_t bytes) {
  uint64_t before = -(uintptr_t)to % LINE;
  if (before > bytes) before = bytes;
  uint64_t whole = (bytes - before) / (PAGES * PAGE) * (PAGES * PAGE);
  memcpy(to, from, before);
  stream_pages(to + before, from + before, whole);
  memcpy(to + before + whole, from + before + whole, bytes - before - whole);
}
#else
static void stream(char* to, const char* from, uint64_t bytes) { memcpy(to, from, bytes); }
#endif

void copy(char* to, const char* from, uint64_t bytes) {
  if (bytes < LEAST_PAST_CACHES)
    memcpy(to, from, bytes);
  else
    stream(to, from, bytes);
}

/* As `copy`. Python calls it without the interpreter lock. */
EXPORTED void hostcb_copy(char* to, const char* from, uint64_t bytes) { copy(to, from, bytes); }

/// One field of a struct, or an enumerator, as a file of layout.c's program has it.
#pragma once

#include <stddef.h>

typedef struct layout_entry {
  char const* name;
  long value;  ///< of the enumerator, or the offset of the field
  long size;   ///< of the field
} layout_entry;

extern layout_entry const layout_0_2[];
extern layout_entry const layout_today[];

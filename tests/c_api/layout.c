/// Compares what a program of 0.2 has compiled in with what the library of today has: where each
/// field of a struct is, how large, and each enumerator.
#include "c_api/layout.h"

#include <stdio.h>
#include <string.h>

int main(void) {
  int differences = 0;
  layout_entry const* now = layout_today;
  for (layout_entry const* old = layout_0_2; old->name != NULL; ++old, ++now) {
    if (old->value == now->value && old->size == now->size) continue;
    ++differences;
    fprintf(stderr, "%s: %ld [%ld], ", now->name, now->value, now->size);
    fprintf(stderr, "but in 0.2 %ld [%ld]\n", old->value, old->size);
  }
  printf("%ld fields and enumerators\n", (long)(now - layout_today));
  return differences + (now - layout_today > 100 ? 0 : 1);
}

// Built twice into two shared objects; PLUGIN and REFUSES are the names each of them shows.
#include "facts.hpp"

[[gnu::visibility("default")]] Facts PLUGIN();
[[gnu::visibility("default")]] void REFUSES();

Facts PLUGIN() { return facts(); }

void REFUSES() { static_cast<void>(zero::Placement({zero::Tensor{}})); }

// Built twice into two shared objects; PLUGIN is the one name each of them shows.
#include "facts.hpp"

[[gnu::visibility("default")]] Facts PLUGIN();

Facts PLUGIN() { return facts(); }

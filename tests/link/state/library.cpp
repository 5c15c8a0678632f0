// state: none
// The whole library, as one translation unit uses it.
#include "../facts.hpp"

Facts probe();
Facts probe() { return facts(); }

// A unit that takes them from there, of the engine and of communicators alike.
#define ZERO_DECLARATIONS
#include "../facts.hpp"

Facts elsewhere();

Facts elsewhere() { return facts(); }

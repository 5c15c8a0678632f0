// The one unit of the program that compiles the bodies for others.
#define ZERO_IMPLEMENTATION
#include "../facts.hpp"

Facts here();

Facts here() { return facts(); }

// A unit that has bodies compiled, and one that takes them from there; which is which, flags say.
// What is called decides nothing: the second calls none of them.
#include <zero/base/error.hpp>

#if defined(ZERO_DECLARATIONS)
int main() { return zero::flags().empty() ? 0 : 1; }
#endif

// state: zero::hidden, zero::counted\(\)::calls, zero::inline_state, zero::per_thread
// Everything the check must find.
namespace zero {

static int hidden = 1;
inline int inline_state = 2;
inline thread_local int per_thread = 3;
inline int& counted() {
  static int calls = 0;
  return ++calls, calls;
}
constexpr int constant = 4;

}  // namespace zero

int probe();
int probe() {
  return ++zero::hidden + ++zero::inline_state + ++zero::per_thread + zero::counted() +
         zero::constant;
}

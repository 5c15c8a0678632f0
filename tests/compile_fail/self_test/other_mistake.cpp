// expect: the text the author had in mind
// reports: the compiler's words do not match
#ifndef ZERO_CONTROL
int main() { return undeclared; }
#else
int main() {}
#endif

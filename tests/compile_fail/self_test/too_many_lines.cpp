// expect: undeclared
// lines: 2
// reports: the compiler prints [0-9]+ lines, not 2
#ifndef ZERO_CONTROL
int main() { return undeclared; }
#else
int main() {}
#endif

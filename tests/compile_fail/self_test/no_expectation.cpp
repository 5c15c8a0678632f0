// reports: needs exactly one line
#ifndef ZERO_CONTROL
int main() { return undeclared; }
#else
int main() {}
#endif

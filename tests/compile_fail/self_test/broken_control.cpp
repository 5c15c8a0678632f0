// expect: undeclared
// reports: the control build does not compile
int main() { return undeclared; }

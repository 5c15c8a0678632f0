// expect: anything
// reports: the mistake compiles
int main() {}

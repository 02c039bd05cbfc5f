// Frames with destructors and handlers of exceptions.
#include <cstdio>
#include <stdexcept>
#include <string>
#include <vector>

#define KEPT __attribute__((noinline))

volatile int sink;

struct Guard {
	explicit Guard(int n) : n(n) {}
	~Guard() { sink += n; }
	int n;
};

KEPT int leaf(int x)
{
	if (x > 5)
		throw std::runtime_error("more than five");
	return x * 2 + sink;
}

KEPT int middle(int x)
{
	Guard guard(x);
	std::vector<int> values(x + 1, x);
	return leaf(values.back()) + static_cast<int>(values.size());
}

KEPT int outer(int x)
{
	Guard guard(x);
	try {
		return middle(x);
	} catch (const std::exception &error) {
		return static_cast<int>(std::string(error.what()).size()) + middle(1);
	}
}

int main(int argc, char **)
{
	int r = 0;
	for (int i = 0; i < 10; i++)
		r += outer(i + argc - 1);
	std::printf("%d\n", r);
	return 0;
}

// Frames of Go: a leaf, a recursion, a closure, goroutines.
package main

import "fmt"

//go:noinline
func leaf(x int) int { return x*3 + 1 }

//go:noinline
func chain(depth int) int {
	if depth == 0 {
		return leaf(7)
	}
	return chain(depth-1) + leaf(depth)
}

func main() {
	done := make(chan int)
	for i := 0; i < 4; i++ {
		go func() { done <- chain(i + 5) }()
	}
	sum := 0
	for i := 0; i < 4; i++ {
		sum += <-done
	}
	fmt.Println(sum)
}

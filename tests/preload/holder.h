/* SPDX-License-Identifier: Apache-2.0 */
/* How the test program finds the driver's functions: linked with them (linked.c), or by the loader (dynamic.c). */
#ifndef LADE_TEST_HOLDER_H
#define LADE_TEST_HOLDER_H

/* Return the function exported as @symbol; NULL: the route does not lead to it. */
void *route_find(const char *symbol);

/* Choose the route that the program was started with. Return 0, or -1 if this program does not know it. */
int route_choose(const char *route);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* How the test program comes by the driver's functions: linked with them (linked.c), or by the loader (dynamic.c). */
#ifndef LADE_TEST_HOLDER_H
#define LADE_TEST_HOLDER_H

/* The function that is exported as @symbol; NULL where the route does not lead to it. */
void *route_find(const char *symbol);

/* Choose the route that the program was started with; returns 0, or -1 for one that this program does not know. */
int route_choose(const char *route);

#endif

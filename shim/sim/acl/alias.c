// SPDX-License-Identifier: Apache-2.0
//
// Nothing: the library made of this needs libascendcl.so, and that is where its names are found.

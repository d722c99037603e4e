// An OpenID provider for tests: the certified oidc-provider with its development login, which accepts
// any password. PEOPLE maps each person to their groups. POST /test/remove?person= removes a person
// from the organisation, and POST /test/lifetime?seconds= sets the lifetime of ID tokens.
import { createServer } from 'node:http';
import { generateKeyPairSync } from 'node:crypto';
import Provider from 'oidc-provider';

const { ISSUER, FACADE, PEOPLE, CLIENT_SECRET } = process.env;
let lifetime = 600;
const groups = JSON.parse(PEOPLE);
const key = generateKeyPairSync('rsa', { modulusLength: 2048 }).privateKey.export({ format: 'jwk' });

const provider = new Provider(ISSUER, {
  clients: [
    {
      client_id: 'parley', client_secret: CLIENT_SECRET, redirect_uris: [`${FACADE}/api/signin/callback`],
      post_logout_redirect_uris: [FACADE, `${FACADE}/`], grant_types: ['authorization_code'], response_types: ['code'],
    },
    {
      client_id: 'parley-cli', token_endpoint_auth_method: 'none', application_type: 'native', redirect_uris: [], response_types: [],
      grant_types: ['urn:ietf:params:oauth:grant-type:device_code', 'refresh_token'],
    },
  ],
  async findAccount(_ctx, id) {
    if (!groups[id]) return undefined;
    return { accountId: id, claims: async () => ({ sub: id, email: `${id}@example.com`, email_verified: true, groups: groups[id] }) };
  },
  claims: { openid: ['sub'], email: ['email', 'email_verified'], groups: ['groups'] },
  scopes: ['openid', 'offline_access', 'email', 'groups'],
  conformIdTokenClaims: false,
  features: { devInteractions: { enabled: true }, deviceFlow: { enabled: true }, revocation: { enabled: true } },
  rotateRefreshToken: true,
  pkce: { required: () => true },
  cookies: { keys: ['only for tests'] },
  jwks: { keys: [{ ...key, use: 'sig', alg: 'RS256' }] },
  ttl: { IdToken: () => lifetime, AccessToken: 600, AuthorizationCode: 60, DeviceCode: 600, Grant: 3600, Interaction: 600, RefreshToken: 3600, Session: 3600 },
});

const { hostname, port } = new URL(ISSUER);
const handle = provider.callback();
createServer((request, response) => {
  const url = new URL(request.url, ISSUER);
  if (!url.pathname.startsWith('/test/')) return void handle(request, response);
  if (url.pathname === '/test/remove') delete groups[url.searchParams.get('person')];
  else lifetime = Number(url.searchParams.get('seconds'));
  response.end();
}).listen(Number(port), hostname);
